"""From a worker's configuration to its speculator."""

from __future__ import annotations

from taco_proto.config import DEFAULT_SPECULATIVE_TOKENS, SpeculationConfig
from taco_worker.input_batch import InputBatch
from taco_worker.models.step_model import StepModel
from taco_worker.speculation.drafter import Drafter
from taco_worker.speculation.speculator import Speculator
from taco_worker.speculation.typical import TypicalAcceptance


def make_speculator(
    config: SpeculationConfig | None, model: StepModel, batch: InputBatch
) -> Speculator | None:
    """None where nothing is to be drafted.

    Raises:
        ConfigurationError: the drafter's own configuration, or its files, make no sense.
    """
    if config is None:
        return None
    drafter = _make_drafter(config, model, batch)
    max_draft_tokens = config.num_speculative_tokens or DEFAULT_SPECULATIVE_TOKENS
    if drafter is not None:
        max_draft_tokens = drafter.max_draft_tokens
    return Speculator(
        drafter,
        batch,
        vocab_size=model.config.vocab_size,
        max_draft_tokens=max_draft_tokens,
        max_tree_paths=model.max_tree_paths,
        figures=getattr(drafter, "figures", None),
    )


def make_typical(config: SpeculationConfig | None) -> TypicalAcceptance | None:
    """None where drafts are verified exactly."""
    if config is None or config.acceptance_method == "rejection_sampler":
        return None
    return TypicalAcceptance(config.posterior_threshold, config.posterior_alpha)


def _make_drafter(config: SpeculationConfig, model: StepModel, batch: InputBatch) -> Drafter | None:
    """Raises: ConfigurationError: see `make_speculator`."""
    if config.lookahead_config_dir is not None or config.ngram_max:
        from taco_worker.speculation.lookahead.drafter import make_lookahead, make_ngram

        make = make_ngram if config.lookahead_config_dir is None else make_lookahead
        return make(
            config,
            vocab_size=model.config.vocab_size,
            max_model_len=batch.max_model_len,
            eos_token_ids=batch.eos_token_ids,
            max_num_seqs=batch.max_num_seqs,
        )
    if config.heads is not None:
        from taco_worker.speculation.heads.make import make_heads

        return make_heads(
            config.heads,
            model,
            max_num_seqs=batch.max_num_seqs,
            max_model_len=batch.max_model_len,
            num_draft_tokens=config.num_speculative_tokens,
        )
    return None
