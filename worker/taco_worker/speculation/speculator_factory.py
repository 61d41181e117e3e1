"""Creates the drafter and the speculator that a worker's configuration asks for."""

from __future__ import annotations

from dataclasses import dataclass

from taco_kernels.library import KernelLibraryError
from taco_proto.config import DEFAULT_SPECULATIVE_TOKENS, SpeculationConfig
from taco_proto.errors import ConfigurationError
from taco_worker.batch.input_batch import InputBatch
from taco_worker.models.step_model import StepModel
from taco_worker.sampling.typical_acceptance import TypicalAcceptance
from taco_worker.speculation.drafter import Drafter
from taco_worker.speculation.grammar_drafter import GrammarDrafter
from taco_worker.speculation.speculator import Speculator


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The batch's limits that a drafter needs; the batch is created after it."""

    max_num_seqs: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]


def make_drafter(
    config: SpeculationConfig | None, model: StepModel, limits: BatchLimits
) -> Drafter | None:
    """Create the worker's drafter; None if the worker drafts nothing itself.

    Call it before the KV cache is sized, so that profiling counts the drafter's memory.

    Raises:
        ConfigurationError: the drafter's configuration or its files are invalid.
    """
    return None if config is None else _make_drafter(config, model, limits)


def max_draft_tokens(config: SpeculationConfig | None, drafter: Drafter | None) -> int:
    """The maximum number of drafts that a step verifies for a sequence."""
    if config is None:
        return 0
    if drafter is not None:
        return drafter.max_draft_tokens
    return config.num_speculative_tokens or DEFAULT_SPECULATIVE_TOKENS


def make_speculator(
    config: SpeculationConfig | None,
    drafter: Drafter | None,
    model: StepModel,
    batch: InputBatch,
    grammar_drafter: GrammarDrafter,
) -> Speculator | None:
    """Create the speculator; None without speculative decoding.

    Raises:
        ConfigurationError: the native library, which selects drafts, is missing.
    """
    if config is None:
        return None
    try:
        return Speculator(
            drafter,
            batch,
            vocab_size=model.plan.vocab_size,
            max_draft_tokens=max_draft_tokens(config, drafter),
            max_tree_paths=model.max_tree_paths,
            grammar_drafter=grammar_drafter,
        )
    except KernelLibraryError as error:
        raise ConfigurationError(f"drafts cannot be verified: {error}") from error


def make_typical(config: SpeculationConfig | None) -> TypicalAcceptance | None:
    """Typical acceptance; None if drafts are verified exactly."""
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
            vocab_size=model.plan.vocab_size,
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
            download_dir=config.download_dir,
        )
    return None
