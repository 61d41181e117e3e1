"""Chooses the next token of every sequence that reached its end in a step."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from taco_proto.logprobs import LogprobColumns
from taco_worker.sampling.columns import Array, Feature, SamplingColumns
from taco_worker.sampling.draw import Filters, RowValues, draw_tokens
from taco_worker.sampling.logprobs import gather_logprobs, spread_rows
from taco_worker.sampling.penalties import (
    add_logit_bias,
    apply_count_penalties,
    apply_repetition_penalty,
    ban_repeated_ngrams,
    ban_tokens,
)
from taco_worker.sampling.random import uniforms

_CHANGES_LOGITS = (
    Feature.LOGIT_BIAS
    | Feature.REPETITION_PENALTY
    | Feature.COUNT_PENALTIES
    | Feature.MIN_TOKENS
    | Feature.NO_REPEAT_NGRAM
)


@dataclass(frozen=True, slots=True)
class SampledRows:
    """The sequences whose next token is chosen; row i of the logits is slot `slots[i]`.

    Attributes:
        num_tokens: tokens known of each sequence, which is the position of the one to choose.
    """

    slots: Array
    num_prompt_tokens: Array
    num_tokens: Array


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """One token a row, int64; log probabilities if any row asked for them."""

    token_ids: Tensor
    logprobs: LogprobColumns | None


class Sampler:
    """Vectorised over the batch; each operation runs on the rows that ask for it and on no other.

    Order: logit bias, repetition, frequency and presence penalties, min_tokens,
    no_repeat_ngram_size; then the most likely token where the temperature is 0, else temperature,
    min_p, top_k, top_p and a draw. Log probabilities are those of the logits before all of it.

    It keeps no state: penalties read the sequence's tokens, randomness is a function of the seed
    and the token's position.
    """

    def __init__(self, columns: SamplingColumns, token_ids: Tensor) -> None:
        """`token_ids` [max_num_seqs, max_model_len] is the batch's token buffer."""
        self._columns = columns
        self._token_ids = token_ids
        self._device = token_ids.device

    def sample(self, logits: Tensor, rows: SampledRows) -> SampledTokens:
        """logits: float32 [num_rows, vocab_size]; they are overwritten."""
        features = self._columns.features[rows.slots]
        wanted = int(np.bitwise_or.reduce(features, initial=0))
        if not wanted:
            return SampledTokens(logits.argmax(-1), None)

        logprob_rows = np.flatnonzero(features & Feature.LOGPROBS)
        if logprob_rows.size:
            raw_logprobs = torch.log_softmax(self._pick(logits, logprob_rows), dim=-1)
        if wanted & _CHANGES_LOGITS:
            self._change_logits(logits, rows, features)
        token_ids = self._choose(logits, rows, features)
        logprobs = None
        if logprob_rows.size:
            num_top = self._columns.logprobs[rows.slots]
            chosen = self._pick(token_ids, logprob_rows)
            logprobs = gather_logprobs(raw_logprobs, chosen, num_top[logprob_rows])
            logprobs = spread_rows(logprobs, num_top)
        return SampledTokens(token_ids, logprobs)

    def _change_logits(self, logits: Tensor, rows: SampledRows, features: Array) -> None:
        columns = self._columns
        if (chosen := np.flatnonzero(features & Feature.LOGIT_BIAS)).size:
            row_ids, ids = self._flatten(chosen, rows, columns.bias_token_ids)
            values = np.concatenate([columns.bias_values[slot] for slot in rows.slots[chosen]])
            add_logit_bias(logits, row_ids, ids, self._upload(values))
        if (chosen := np.flatnonzero(features & Feature.REPETITION_PENALTY)).size:
            apply_repetition_penalty(
                logits,
                self._upload(chosen),
                self._tokens_of(rows, chosen),
                self._upload(rows.num_tokens[chosen]),
                self._upload(columns.repetition_penalty[rows.slots[chosen]]),
            )
        if (chosen := np.flatnonzero(features & Feature.COUNT_PENALTIES)).size:
            apply_count_penalties(
                logits,
                self._upload(chosen),
                self._tokens_of(rows, chosen),
                self._upload(rows.num_prompt_tokens[chosen]),
                self._upload(rows.num_tokens[chosen]),
                self._upload(columns.presence_penalty[rows.slots[chosen]]),
                self._upload(columns.frequency_penalty[rows.slots[chosen]]),
            )
        num_generated = rows.num_tokens - rows.num_prompt_tokens
        is_short = num_generated < columns.min_tokens[rows.slots]
        if (chosen := np.flatnonzero(((features & Feature.MIN_TOKENS) != 0) & is_short)).size:
            ban_tokens(logits, *self._flatten(chosen, rows, columns.suppressed_token_ids))
        if (chosen := np.flatnonzero(features & Feature.NO_REPEAT_NGRAM)).size:
            ban_repeated_ngrams(
                logits,
                self._upload(chosen),
                self._tokens_of(rows, chosen),
                self._upload(rows.num_tokens[chosen]),
                self._upload(columns.no_repeat_ngram_size[rows.slots[chosen]]),
            )

    def _choose(self, logits: Tensor, rows: SampledRows, features: Array) -> Tensor:
        random_rows = np.flatnonzero(features & Feature.RANDOM)
        if not random_rows.size:
            return logits.argmax(-1)
        slots, positions = rows.slots[random_rows], rows.num_tokens[random_rows]
        drawn = self._draw(self._pick(logits, random_rows), slots, positions)
        if random_rows.size == features.size:
            return drawn
        token_ids = logits.argmax(-1)
        token_ids[self._upload(random_rows)] = drawn
        return token_ids

    def _draw(self, logits: Tensor, slots: Array, positions: Array) -> Tensor:
        columns = self._columns
        numbers = uniforms(
            self._upload(columns.seed[slots]), self._upload(positions.astype(np.int64))
        )
        temperature = self._upload(columns.temperature[slots])
        return draw_tokens(logits, temperature, numbers, self._filters(slots))

    def _filters(self, slots: Array) -> Filters:
        columns = self._columns
        features = columns.features[slots]

        def values_of(feature: Feature, column: Array) -> RowValues | None:
            rows = np.flatnonzero(features & feature)
            if not rows.size:
                return None
            return RowValues(self._upload(rows), self._upload(column[slots[rows]]))

        top_k = columns.top_k[slots] * ((features & Feature.TOP_K) != 0)
        return Filters(
            min_p=values_of(Feature.MIN_P, columns.min_p),
            top_k=values_of(Feature.TOP_K, columns.top_k),
            max_top_k=int(top_k.max()),
            top_p=values_of(Feature.TOP_P, columns.top_p),
        )

    def _tokens_of(self, rows: SampledRows, chosen: Array) -> Tensor:
        """int64 [num_chosen, longest], the tokens of the chosen rows' sequences."""
        longest = int(rows.num_tokens[chosen].max())
        return self._token_ids[self._upload(rows.slots[chosen]), :longest].long()

    def _flatten(
        self, chosen: Array, rows: SampledRows, ids_of_slot: list[Array]
    ) -> tuple[Tensor, Tensor]:
        """Lists of token ids that slots have, as pairs of a row and a token."""
        lists = [ids_of_slot[slot] for slot in rows.slots[chosen]]
        row_ids = np.repeat(chosen, [ids.size for ids in lists])
        return self._upload(row_ids), self._upload(np.concatenate(lists))

    def _pick(self, values: Tensor, rows: Array) -> Tensor:
        """Some rows in rising order; a copy unless they are all."""
        return values if rows.size == values.shape[0] else values[self._upload(rows)]

    def _upload(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self._device)
