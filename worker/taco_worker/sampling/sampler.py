"""Samples the next token of each sequence that has all of its known tokens computed."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from taco_worker.devices.transfers import Transfers
from taco_worker.sampling import beam_scores
from taco_worker.sampling.bad_words import bad_word_rows, ban_bad_words
from taco_worker.sampling.logprobs import LogprobTable, gather_logprobs
from taco_worker.sampling.ops import Penalties, SamplingMetadata, SamplingOps
from taco_worker.sampling.random import uniforms
from taco_worker.sampling.slot_params import CHANGES_LOGITS, Array, Feature, SlotSamplingParams
from taco_worker.sampling.token_masks import TokenMasks
from taco_worker.sampling.torch_penalties import add_logit_bias, allow_tokens, ban_tokens
from taco_worker.sampling.typical_acceptance import Candidates, TypicalAcceptance

_TOKEN_PENALTIES = Feature.REPETITION_PENALTY | Feature.COUNT_PENALTIES | Feature.NO_REPEAT_NGRAM
_BANS = Feature.ALLOWED_TOKENS | Feature.BAD_WORDS | Feature.MIN_TOKENS | Feature.NO_REPEAT_NGRAM

# Instead of NO_TOKEN where the request's own parameters exclude every token.
NO_TOKEN_LEFT = -2


@dataclass(frozen=True, slots=True)
class SampledRows:
    """The sequences to sample; row i of the logits belongs to slot `slots[i]`.

    Attributes:
        num_tokens: known tokens of each sequence: the position of the token to sample.
    """

    slots: Array
    num_prompt_tokens: Array
    num_tokens: Array


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """One token per row, int64, or NO_TOKEN or NO_TOKEN_LEFT; log probabilities if any row asked
    for them, which are undefined for these two."""

    token_ids: Tensor
    logprobs: LogprobTable | None


class Sampler:
    """Samples tokens for a whole batch at once.

    Order: logit bias, repetition, frequency and presence penalties, no_repeat_ngram_size,
    min_tokens, bad words, allowed tokens, logits processors, the masks of grammars. Then the most
    likely token if the temperature is 0, else temperature, min_p, top_k, top_p and a draw. Log
    probabilities are those of the raw logits; those of beams have the changes (see `beam_scores`).

    The sampler has no state: penalties read the sequence's tokens, and randomness is a function of
    the seed and the token's position.
    """

    def __init__(
        self,
        columns: SlotSamplingParams,
        token_ids: Tensor,
        ops: SamplingOps,
        transfers: Transfers,
        typical: TypicalAcceptance | None = None,
    ) -> None:
        """
        Args:
            token_ids: [max_num_seqs, max_model_len], the batch's token table.
            typical: None accepts a draft only if the sample equals it.
        """
        self._columns = columns
        self._token_ids = token_ids
        self._ops = ops
        self._transfers = transfers
        self._typical = typical

    def sample(
        self,
        logits: Tensor,
        rows: SampledRows,
        candidates: Candidates | None = None,
        masks: TokenMasks | None = None,
        process: Callable[[Tensor], None] | None = None,
    ) -> SampledTokens:
        """Sample one token per row.

        Args:
            logits: float32 [num_rows, vocab_size]; they are overwritten.
            candidates: drafts that typical acceptance may prefer to a sample.
            masks: of the rows with a grammar; None: no row has one, or the logits are masked.
            process: runs the logits processors of all rows, in place; None: no row has one.
        """
        features = self._columns.features[rows.slots]
        wanted = int(np.bitwise_or.reduce(features, initial=0))
        changes_logits = masks is not None or bool(wanted & CHANGES_LOGITS)
        logprob_rows = np.flatnonzero(features & Feature.LOGPROBS)
        if logprob_rows.size:
            raw_logits = self._pick(logits, logprob_rows)
            if changes_logits and raw_logits is logits:
                raw_logits = logits.clone()
        beam_rows = np.flatnonzero(features & Feature.BEAM)
        if beam_rows.size:
            temperature = self._columns.temperature[rows.slots[beam_rows]]
            beams, temperatures = self._transfers.upload(beam_rows, temperature)
            beam_scores.normalize(logits, beams, temperatures)
        if changes_logits:
            self._change_logits(logits, rows, features, masks, process)
        banning_rows = np.flatnonzero(features & _BANS)
        if banning_rows.size:  # NaN is not -inf, and is the model's fault
            greatest = self._pick(logits, banning_rows).amax(dim=1)
        scores = logits[beams] if beam_rows.size else None
        metadata = self._metadata(rows, features)
        token_ids = self._ops.sample(logits, metadata)
        if self._typical is not None and candidates is not None:
            token_ids = self._typical.prefer(
                logits, metadata, token_ids, candidates, self._transfers
            )
        if banning_rows.size:
            (places,) = self._transfers.upload(banning_rows)
            token_ids[places] = token_ids[places].masked_fill(greatest == -torch.inf, NO_TOKEN_LEFT)
        logprobs = None
        if logprob_rows.size:
            chosen = self._pick(token_ids, logprob_rows).clamp(min=0)
            num_top = self._columns.logprobs[rows.slots]
            listed = None
            if wanted & Feature.LOGPROB_TOKEN_IDS:
                slots = rows.slots[logprob_rows].tolist()
                listed = [self._columns.logprob_token_ids[slot] for slot in slots]
            if scores is None:
                logprobs = gather_logprobs(self._ops, raw_logits, chosen, num_top, listed)
            else:  # a beam asks for log probabilities
                (places,) = self._transfers.upload(np.searchsorted(logprob_rows, beam_rows))
                raw_logits[places] = scores
                logprobs = gather_logprobs(self._ops, raw_logits, chosen, num_top, listed)
                logprobs = beam_scores.without_normalization(logprobs, places, scores)
        return SampledTokens(token_ids, logprobs)

    def _change_logits(
        self,
        logits: Tensor,
        rows: SampledRows,
        features: Array,
        masks: TokenMasks | None,
        process: Callable[[Tensor], None] | None,
    ) -> None:
        columns = self._columns
        if (chosen := np.flatnonzero(features & Feature.LOGIT_BIAS)).size:
            row_ids, ids = self._flatten(chosen, rows, columns.bias_token_ids)
            values = np.concatenate([columns.bias_values[slot] for slot in rows.slots[chosen]])
            add_logit_bias(logits, *self._transfers.upload(row_ids, ids, values))
        if (chosen := np.flatnonzero(features & _TOKEN_PENALTIES)).size:
            self._ops.penalize(logits, self._token_ids, self._penalties(rows, chosen))
        num_generated = rows.num_tokens - rows.num_prompt_tokens
        is_short = num_generated < columns.min_tokens[rows.slots]
        if masks is not None:  # a complete text ends
            is_short[masks.rows[masks.is_complete]] = False
        if (chosen := np.flatnonzero(((features & Feature.MIN_TOKENS) != 0) & is_short)).size:
            pairs = self._flatten(chosen, rows, columns.end_token_ids)
            ban_tokens(logits, *self._transfers.upload(*pairs))
        if (chosen := np.flatnonzero(features & Feature.BAD_WORDS)).size:
            self._ban_bad_words(logits, rows, chosen, num_generated[chosen])
        # Last, so that other tokens stay banned even if all allowed tokens are banned.
        if (chosen := np.flatnonzero(features & Feature.ALLOWED_TOKENS)).size:
            row_ids, ids = self._flatten(chosen, rows, columns.allowed_token_ids)
            places = np.searchsorted(chosen, row_ids)
            allow_tokens(logits, *self._transfers.upload(chosen, places, row_ids, ids))
        if process is not None:
            process(logits)
        if masks is not None:
            self._ops.mask(logits, masks)

    def _ban_bad_words(
        self, logits: Tensor, rows: SampledRows, chosen: Array, num_generated: Array
    ) -> None:
        slots = rows.slots[chosen]
        words = bad_word_rows(
            [self._columns.bad_words[slot] for slot in slots],
            rows=chosen,
            sequences=slots,
            num_tokens=rows.num_tokens[chosen],
            num_generated=num_generated,
        )
        if words is not None:
            ban_bad_words(logits, self._token_ids, *self._transfers.upload(*words))

    def _penalties(self, rows: SampledRows, chosen: Array) -> Penalties:
        columns, slots = self._columns, rows.slots[chosen]
        return Penalties(
            rows=chosen,
            sequences=slots,
            starts=rows.num_prompt_tokens[chosen],
            lengths=rows.num_tokens[chosen],
            repetition=columns.repetition_penalty[slots],
            presence=columns.presence_penalty[slots],
            frequency=columns.frequency_penalty[slots],
            ngram_size=columns.no_repeat_ngram_size[slots],
        )

    def _metadata(self, rows: SampledRows, features: Array) -> SamplingMetadata:
        if not (features & Feature.RANDOM).any():
            return SamplingMetadata.greedy(rows.slots.size)
        columns, slots = self._columns, rows.slots

        def where(feature: Feature, column: Array, off: int) -> Array:
            return np.where(features & feature, column[slots], column.dtype.type(off))

        return SamplingMetadata(
            temperature=where(Feature.RANDOM, columns.temperature, 0),
            min_p=where(Feature.MIN_P, columns.min_p, 0),
            top_k=where(Feature.TOP_K, columns.top_k, 0),
            top_p=where(Feature.TOP_P, columns.top_p, 1),
            uniforms=uniforms(columns.seed[slots], rows.num_tokens.astype(np.int64)),
        )

    def _flatten(
        self, chosen: Array, rows: SampledRows, ids_of_slot: list[Array]
    ) -> tuple[Array, Array]:
        """The token ids of the chosen rows' slots, as pairs of row and token."""
        lists = [ids_of_slot[slot] for slot in rows.slots[chosen]]
        return np.repeat(chosen, [ids.size for ids in lists]), np.concatenate(lists)

    def _pick(self, values: Tensor, rows: Array) -> Tensor:
        """Select rows (ascending); returns `values` itself if all are selected."""
        if rows.size == values.shape[0]:
            return values
        (index,) = self._transfers.upload(rows)
        return values[index]
