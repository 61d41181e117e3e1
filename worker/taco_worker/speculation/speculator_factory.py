"""From a worker's configuration to its speculator."""

from __future__ import annotations

from dataclasses import dataclass

from taco_kernels.library import KernelLibraryError
from taco_proto.config import DEFAULT_SPECULATIVE_TOKENS, SpeculationConfig
from taco_proto.errors import ConfigurationError
from taco_worker.batch.input_batch import InputBatch
from taco_worker.models.step_model import StepModel
from taco_worker.sampling.typical_acceptance import TypicalAcceptance
from taco_worker.speculation.drafter import Drafter
from taco_worker.speculation.speculator import Speculator


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What a drafter must know of the batch, which is made after it."""

    max_num_seqs: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]


def make_drafter(
    config: SpeculationConfig | None, model: StepModel, limits: BatchLimits
) -> Drafter | None:
    """None where the worker drafts nothing itself. To be made before the KV cache is sized: what
    it takes of the model's memory is seen then.

    Raises:
        ConfigurationError: the drafter's own configuration, or its files, make no sense.
    """
    return None if config is None else _make_drafter(config, model, limits)


def max_draft_tokens(config: SpeculationConfig | None, drafter: Drafter | None) -> int:
    """The most drafts of a sequence that a step verifies."""
    if config is None:
        return 0
    if drafter is not None:
        return drafter.max_draft_tokens
    return config.num_speculative_tokens or DEFAULT_SPECULATIVE_TOKENS


def make_speculator(
    config: SpeculationConfig | None, drafter: Drafter | None, model: StepModel, batch: InputBatch
) -> Speculator | None:
    """None where nothing is to be drafted.

    Raises:
        ConfigurationError: there is no library of CPU kernels, which chooses among drafts.
    """
    if config is None:
        return None
    try:
        return Speculator(
            drafter,
            batch,
            vocab_size=model.config.vocab_size,
            max_draft_tokens=max_draft_tokens(config, drafter),
            max_tree_paths=model.max_tree_paths,
        )
    except KernelLibraryError as error:
        raise ConfigurationError(f"drafts cannot be verified: {error}") from error


def make_typical(config: SpeculationConfig | None) -> TypicalAcceptance | None:
    """None where drafts are verified exactly."""
    if config is None or config.acceptance_method == "rejection_sampler":
        return None
    return TypicalAcceptance(config.posterior_threshold, config.posterior_alpha)


def _make_drafter(
    config: SpeculationConfig, model: StepModel, limits: BatchLimits
) -> Drafter | None:
    """Raises: ConfigurationError: see `make_drafter`."""
    if config.lookahead_config_dir is not None or config.ngram_max:
        from taco_worker.speculation.lookahead.lookahead_drafter import make_lookahead, make_ngram

        make = make_ngram if config.lookahead_config_dir is None else make_lookahead
        return make(
            config,
            vocab_size=model.config.vocab_size,
            max_model_len=limits.max_model_len,
            eos_token_ids=limits.eos_token_ids,
            max_num_seqs=limits.max_num_seqs,
        )
    if config.heads is not None:
        from taco_worker.speculation.heads.head_factory import make_heads

        return make_heads(
            config.heads,
            model,
            max_num_seqs=limits.max_num_seqs,
            max_model_len=limits.max_model_len,
            num_draft_tokens=config.num_speculative_tokens,
        )
    return None
