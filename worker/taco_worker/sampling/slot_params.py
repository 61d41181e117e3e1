"""Sampling parameters of all slots, stored as columns."""

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from taco_proto.sampling_params import SamplingParams
from taco_worker.sampling.bad_words import NO_BAD_WORDS, BadWords

NO_LOGPROBS = -1

Array = npt.NDArray[Any]


class Feature(enum.IntFlag):
    """The sampling features that a slot uses; none is greedy decoding."""

    RANDOM = enum.auto()  # temperature above 0
    MIN_P = enum.auto()
    TOP_K = enum.auto()
    TOP_P = enum.auto()
    LOGIT_BIAS = enum.auto()
    REPETITION_PENALTY = enum.auto()
    COUNT_PENALTIES = enum.auto()  # presence, frequency
    MIN_TOKENS = enum.auto()
    NO_REPEAT_NGRAM = enum.auto()
    LOGPROBS = enum.auto()
    PROMPT_LOGPROBS = enum.auto()
    ALLOWED_TOKENS = enum.auto()
    BAD_WORDS = enum.auto()
    GRAMMAR = enum.auto()
    PROCESSORS = enum.auto()
    LOGPROB_TOKEN_IDS = enum.auto()
    BEAM = enum.auto()  # log probabilities after the changes of logits


# The sets of features are plain integers, which numpy and Python combine faster than flags.

# Features that read the tokens before the sampled one.
READS_TOKENS = int(
    Feature.REPETITION_PENALTY
    | Feature.COUNT_PENALTIES
    | Feature.NO_REPEAT_NGRAM
    | Feature.BAD_WORDS
)

# Features that change logits before the masks of grammars.
CHANGES_LOGITS = int(
    READS_TOKENS
    | Feature.LOGIT_BIAS
    | Feature.MIN_TOKENS
    | Feature.ALLOWED_TOKENS
    | Feature.PROCESSORS
)


class SlotSamplingParams:
    """One row per slot, valid from `set_row` until the next `set_row` of the slot.

    Floats are float32, so that a sequence's tokens do not depend on whether its parameters passed
    through protobuf.

    Attributes:
        features: bits of `Feature`; 0 is plain greedy decoding.
        end_token_ids: per slot, the tokens that end its sequence, which `min_tokens` suppresses.
        bias_token_ids, bias_values: per slot, its logit bias.
        allowed_token_ids: per slot, the only tokens that may be sampled; empty: all.
        bad_words: per slot, the token sequences that must not be generated.
        logprob_token_ids: per slot, the tokens whose log probabilities are returned; empty: those
            of the `logprobs` most likely ones.
    """

    def __init__(
        self,
        max_num_seqs: int,
        *,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        gives_logprobs: bool = True,
    ) -> None:
        """`gives_logprobs=False` ignores requests for log probabilities, except those of beams."""
        self._vocab_size = vocab_size
        self._gives_logprobs = gives_logprobs
        self._eos_token_ids = tuple(eos_token_ids)
        self.features = np.zeros(max_num_seqs, dtype=np.int32)
        self.seed = np.zeros(max_num_seqs, dtype=np.int64)
        self.temperature = np.ones(max_num_seqs, dtype=np.float32)
        self.top_p = np.ones(max_num_seqs, dtype=np.float32)
        self.top_k = np.zeros(max_num_seqs, dtype=np.int32)
        self.min_p = np.zeros(max_num_seqs, dtype=np.float32)
        self.presence_penalty = np.zeros(max_num_seqs, dtype=np.float32)
        self.frequency_penalty = np.zeros(max_num_seqs, dtype=np.float32)
        self.repetition_penalty = np.ones(max_num_seqs, dtype=np.float32)
        self.no_repeat_ngram_size = np.zeros(max_num_seqs, dtype=np.int32)
        self.min_tokens = np.zeros(max_num_seqs, dtype=np.int32)
        self.logprobs = np.full(max_num_seqs, NO_LOGPROBS, dtype=np.int32)
        self.prompt_logprobs = np.full(max_num_seqs, NO_LOGPROBS, dtype=np.int32)
        no_ids = np.zeros(0, dtype=np.int64)
        self.end_token_ids: list[Array] = [no_ids] * max_num_seqs
        self.bias_token_ids: list[Array] = [no_ids] * max_num_seqs
        self.bias_values: list[Array] = [np.zeros(0, dtype=np.float32)] * max_num_seqs
        self.allowed_token_ids: list[Array] = [no_ids] * max_num_seqs
        self.bad_words = [NO_BAD_WORDS] * max_num_seqs
        self.logprob_token_ids: list[Array] = [no_ids] * max_num_seqs

    def set_row(self, slot: int, params: SamplingParams, *, has_grammar: bool = False) -> None:
        """Set a slot's parameters, whose `seed` must be set.

        Bias and suppression of token ids beyond the vocabulary are dropped: such tokens are never
        sampled.
        """
        assert params.seed is not None
        self.seed[slot] = params.seed
        is_scaled = not (params.use_beam_search and params.is_greedy)
        self.temperature[slot] = params.temperature if is_scaled else 1.0
        self.top_p[slot] = params.top_p
        self.top_k[slot] = min(params.top_k, self._vocab_size)
        self.min_p[slot] = params.min_p
        self.presence_penalty[slot] = params.presence_penalty
        self.frequency_penalty[slot] = params.frequency_penalty
        self.repetition_penalty[slot] = params.repetition_penalty
        self.no_repeat_ngram_size[slot] = params.no_repeat_ngram_size
        self.min_tokens[slot] = params.min_tokens
        self._set_logprobs(slot, params)
        self.prompt_logprobs[slot] = self._num_logprobs(params.prompt_logprobs)
        self._set_end_tokens(slot, params, has_grammar=has_grammar)
        self._set_bias(slot, params)
        allowed = {i for i in params.allowed_token_ids or () if i < self._vocab_size}
        self.allowed_token_ids[slot] = np.array(sorted(allowed), dtype=np.int64)
        self.bad_words[slot] = BadWords.of(params.bad_words_token_ids or (), self._vocab_size)
        grammar = Feature.GRAMMAR if has_grammar else Feature(0)
        self.features[slot] = self._features(slot, params) | grammar

    def _num_logprobs(self, asked: int | None) -> int:
        return NO_LOGPROBS if asked is None else min(asked, self._vocab_size)

    def _set_logprobs(self, slot: int, params: SamplingParams) -> None:
        listed = [i for i in params.logprob_token_ids or () if i < self._vocab_size]
        self.logprob_token_ids[slot] = np.array(listed, dtype=np.int64)
        asked = len(listed) or params.logprobs
        gives_logprobs = self._gives_logprobs or params.use_beam_search
        self.logprobs[slot] = self._num_logprobs(asked if gives_logprobs else None)

    def _set_end_tokens(self, slot: int, params: SamplingParams, *, has_grammar: bool) -> None:
        ids = set(params.stop_token_ids or ())
        if has_grammar or not params.ignore_eos:  # the end of a grammar's text is never ignored
            ids.update(self._eos_token_ids)
        known = sorted(token_id for token_id in ids if token_id < self._vocab_size)
        self.end_token_ids[slot] = np.array(known, dtype=np.int64)

    def _set_bias(self, slot: int, params: SamplingParams) -> None:
        bias = {i: value for i, value in (params.logit_bias or {}).items() if i < self._vocab_size}
        self.bias_token_ids[slot] = np.fromiter(bias.keys(), dtype=np.int64, count=len(bias))
        self.bias_values[slot] = np.fromiter(bias.values(), dtype=np.float32, count=len(bias))

    def _features(self, slot: int, params: SamplingParams) -> Feature:
        random = not params.is_greedy and not params.use_beam_search
        wanted = {
            Feature.RANDOM: random,
            # Filters always keep the most likely token, so greedy decoding ignores them.
            Feature.MIN_P: random and params.min_p > 0.0,
            Feature.TOP_K: random and 0 < params.top_k < self._vocab_size,
            Feature.TOP_P: random and self.top_p[slot] < 1.0,
            Feature.LOGIT_BIAS: self.bias_token_ids[slot].size > 0,
            Feature.REPETITION_PENALTY: params.repetition_penalty != 1.0,
            Feature.COUNT_PENALTIES: bool(params.presence_penalty or params.frequency_penalty),
            Feature.MIN_TOKENS: params.min_tokens > 0 and self.end_token_ids[slot].size > 0,
            Feature.NO_REPEAT_NGRAM: params.no_repeat_ngram_size > 0,
            Feature.LOGPROBS: self.logprobs[slot] != NO_LOGPROBS,
            Feature.LOGPROB_TOKEN_IDS: self._gives_logprobs
            and self.logprob_token_ids[slot].size > 0,
            Feature.PROMPT_LOGPROBS: params.prompt_logprobs is not None,
            Feature.ALLOWED_TOKENS: self.allowed_token_ids[slot].size > 0,
            Feature.BAD_WORDS: self.bad_words[slot].last.size > 0,
        }
        features = Feature(sum(feature for feature, is_wanted in wanted.items() if is_wanted))
        is_changed = bool(features & CHANGES_LOGITS) or self.temperature[slot] != 1.0
        return features | Feature.BEAM if params.use_beam_search and is_changed else features
