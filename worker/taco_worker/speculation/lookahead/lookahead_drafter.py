"""Drafts from earlier text: the lookahead cache, and prompt lookup (`ngram`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from taco_kernels.instruction_sets import UnsupportedCpuError
from taco_kernels.library import KernelLibraryError, load
from taco_kernels.native.cores import available_cores
from taco_kernels.native.draft_trees import DraftTrees
from taco_kernels.native.lookahead import MAX_MATCH, MAX_TREE, CacheOptions, LookaheadCache, Mode
from taco_proto.config import SpeculationConfig
from taco_proto.errors import ConfigurationError
from taco_proto.steps import IntArray, JoinedSequences
from taco_worker.speculation.drafter import ComputedTokens
from taco_worker.speculation.lookahead.acceptance_priors import class_priors
from taco_worker.speculation.lookahead.lookahead_config import cache_options, read_config
from taco_worker.speculation.lookahead.lookahead_metrics import LookaheadMetrics
from taco_worker.speculation.lookahead.warm_up import read_texts, warm_up

# Default number of drafts of ngram.
_DEFAULT_NGRAM_DRAFTS = 5


class LookaheadDrafter:
    """A `Drafter` over the native lookahead cache. It needs no hidden states.

    Attributes:
        cache: the learned token sequences.
        metrics: averages over its drafts.
        name, max_draft_tokens, priors, needs_history, hidden_layers: see `Drafter`.
    """

    needs_history = True
    hidden_layers: tuple[int, ...] | None = None

    def __init__(
        self,
        name: str,
        options: CacheOptions,
        *,
        num_threads: int = 1,
        ignores_prompts: bool = False,
        log_interval: int | None = None,
    ) -> None:
        """`log_interval`: iterations between log lines of the metrics; None: never.

        Raises:
            ConfigurationError: the native library or the memory for the cache is missing.
        """
        self.name = name
        self.priors = class_priors()
        self.metrics = LookaheadMetrics(options.num_slots, log_interval)
        num_paths = {
            Mode.RAW: options.raw_paths,
            Mode.TURBO: options.max_paths,
            Mode.HYBRID: max(options.raw_paths, options.max_paths),
        }[options.mode]
        self.max_draft_tokens = min(options.copy_length * num_paths, MAX_TREE)
        self._ignores_prompts = ignores_prompts
        try:
            kernels = load(min(num_threads, len(available_cores().cpus)))
            self.cache = LookaheadCache(kernels, options, self.priors)
        except (KernelLibraryError, UnsupportedCpuError, MemoryError) as error:
            raise ConfigurationError(f"the lookahead cache cannot start: {error}") from error

    def clear(self) -> None:
        self.cache.clear()
        self.metrics.clear()

    def leave(self, slots: IntArray) -> None:
        self.cache.leave(slots)
        self.metrics.leave(slots)

    def join(self, joined: JoinedSequences) -> None:
        self.cache.join(
            joined.slots,
            joined.num_prompt_tokens,
            joined.num_tokens,
            joined.token_ids,
            joined.cache_salts,
            skips_prompts=self._ignores_prompts,
        )

    def append(self, slots: IntArray, num_tokens: IntArray, token_ids: IntArray) -> None:
        self.cache.append(slots, num_tokens, token_ids)

    def observe(self, computed: ComputedTokens) -> None:
        """Nothing: the cache learns from tokens alone."""

    def record_verified(
        self, slots: IntArray, num_drafts: IntArray, num_accepted: IntArray
    ) -> None:
        self.metrics.observe(slots, num_drafts, num_accepted)

    def draft(self, slots: IntArray, max_nodes: IntArray) -> DraftTrees:
        return self.cache.draft(slots, np.minimum(max_nodes, self.max_draft_tokens))


def make_lookahead(
    config: SpeculationConfig,
    *,
    vocab_size: int,
    max_model_len: int,
    eos_token_ids: tuple[int, ...],
    max_num_seqs: int,
) -> LookaheadDrafter:
    """Create the lookahead cache that `config.lookahead_config_dir` describes.

    Raises:
        ConfigurationError: its file or its warm-up file is invalid, or it cannot start.
    """
    assert config.lookahead_config_dir is not None
    directory = Path(config.lookahead_config_dir)
    wanted = read_config(config.lookahead_config_dir)
    texts = []
    if wanted.warmup_file is not None:
        texts = read_texts(directory / wanted.warmup_file, vocab_size)
    options = cache_options(
        wanted,
        config,
        vocab_size=vocab_size,
        max_model_len=max_model_len,
        eos_token_ids=eos_token_ids,
        max_num_seqs=max_num_seqs,
    )
    drafter = LookaheadDrafter(
        "lookahead",
        options,
        num_threads=wanted.num_threads,
        ignores_prompts=wanted.ignore_prompt or config.lookahead_ignores_prompts,
        log_interval=wanted.log_interval if wanted.is_debug else None,
    )
    warm_up(drafter.cache, texts)
    return drafter


def make_ngram(
    config: SpeculationConfig,
    *,
    vocab_size: int,
    max_model_len: int,
    eos_token_ids: tuple[int, ...],
    max_num_seqs: int,
) -> LookaheadDrafter:
    """Create prompt lookup: raw mode with matches of ngram_max down to ngram_min tokens.

    Raises:
        ConfigurationError: the lengths are invalid, or the cache cannot start.
    """
    num_drafts = config.num_speculative_tokens or _DEFAULT_NGRAM_DRAFTS
    least = config.ngram_min or 1
    if not 1 <= least <= config.ngram_max <= MAX_MATCH:
        raise ConfigurationError(
            f"--ngram-prompt-lookup-min {least} and --ngram-prompt-lookup-max {config.ngram_max} "
            f"must be 1 to {MAX_MATCH} tokens, min not above max"
        )
    if num_drafts > MAX_TREE:
        raise ConfigurationError(f"--num-speculative-tokens must be at most {MAX_TREE}")
    # Capacity for every sequence at its longest; memory is allocated when needed.
    num_lengths = config.ngram_max - least + 1
    options = CacheOptions(
        num_slots=max_num_seqs,
        max_len=max_model_len,
        vocab_size=vocab_size,
        eos_ids=eos_token_ids,
        num_tokens=2 * num_lengths * max_num_seqs * max_model_len,
        has_table=False,
        mode=Mode.RAW,
        copy_length=num_drafts,
        raw_min=least,
        raw_max=config.ngram_max,
    )
    return LookaheadDrafter("ngram", options)
