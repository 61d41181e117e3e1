"""The output of a step that was launched: waits for the device and builds the `StepOutput`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from taco_proto.logprobs import LogprobColumns, concatenate, without_entries
from taco_proto.steps import EMPTY, IntArray, RowError, RowErrorCode, StepOutput, StepPlan
from taco_worker.devices.transfers import Transfers
from taco_worker.sampling.logprobs import LogprobTable
from taco_worker.sampling.sampler import NO_TOKEN_LEFT
from taco_worker.sampling.slot_params import Array

_NO_CHOICE = (
    "the model returned no finite probabilities for a token of this request: its checkpoint or "
    "the device may be damaged"
)
_NO_TOKEN_LEFT = (
    "the request's parameters exclude every token: its constraint on the text, allowed_token_ids, "
    "bad_words, no_repeat_ngram_size and min_tokens leave none in common"
)


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log probabilities of prompt tokens in one or more tables; slots and positions of all rows."""

    slots: IntArray
    positions: IntArray
    tables: list[LogprobTable]


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of verifying the drafts of some rows.

    Attributes:
        kept: indices of the sampled tokens that count. The target samples one token after each
            row's own token and one after each draft.
        num_tokens: int32 [number of sampled rows], tokens that each row gains.
        num_drafts: int32 [number of sampled rows], drafts that each row verified.
        token_ids: int32 [sum(num_tokens)], the tokens that the rows gain, on the host; empty if all
            drafts were forced.
        end_token_ids: by sampled row, the tokens that end its sequence.
    """

    kept: IntArray
    num_tokens: IntArray
    num_drafts: IntArray
    token_ids: IntArray
    end_token_ids: Sequence[Array]


@dataclass(frozen=True, slots=True)
class KeptTokens:
    """The tokens of some rows whose KV stays valid, row after row: all but rejected drafts.

    Attributes:
        slots, num_tokens: int32 [num_rows].
        positions: int32 [num_rows], of each row's first token.
        hidden: [sum(num_tokens), size], the hidden states that the drafter asked for.
    """

    slots: IntArray
    num_tokens: IntArray
    positions: IntArray
    hidden: Tensor


@dataclass(frozen=True, slots=True)
class StepPart:
    """The results of some rows of a step.

    Attributes:
        slots: the slots of the sampled rows.
        token_ids: int64, on the device: one per slot, or `verified.num_tokens` per slot.
        logprobs: of all sampled tokens; None if no sequence asked for them.
        verified: None if the step verified no drafts.
        kept: None if no drafter asked for hidden states.
        errors: of sequences that end whatever they sample, such as those whose grammar allows no
            token.
        failures: by slot, why a sequence ends if it gains no token.
    """

    slots: IntArray
    token_ids: Tensor
    logprobs: LogprobTable | None
    prompt: PromptLogprobs | None
    verified: Verified | None = None
    kept: KeptTokens | None = None
    errors: tuple[RowError, ...] = ()
    failures: Mapping[int, RowError] = field(default_factory=dict)

    def tables(self) -> list[LogprobTable]:
        own = [] if self.logprobs is None else [self.logprobs]
        return own + (self.prompt.tables if self.prompt else [])


class LaunchedStep:
    """A step whose results are being copied to the host.

    `wait` may be called once, from any thread. A step with drafts has one part.
    """

    def __init__(
        self,
        plan: StepPlan,
        parts: Sequence[StepPart],
        transfers: Transfers,
        num_invalid_drafts: int = 0,
    ) -> None:
        self._plan = plan
        self._num_invalid_drafts = num_invalid_drafts
        self._parts = parts
        tensors = [part.token_ids.to(torch.int32) for part in parts]
        tensors += [tensor for part in parts for t in part.tables() for tensor in t.tensors()]
        self._download = transfers.download(*tensors)

    def wait(self) -> StepOutput:
        """Return the step's output. Raises the device's error if the step failed there."""
        arrived = iter(self._download.wait())
        token_ids = [next(arrived).numpy() for _ in self._parts]
        columns = [_Columns(part, arrived) for part in self._parts]
        verified = self._parts[0].verified if self._parts else None
        slots, tokens = _joined([part.slots for part in self._parts]), _joined(token_ids)
        failures = {slot: e for part in self._parts for slot, e in part.failures.items()}
        failed_prompts = [slot for each in columns for slot in each.failed]
        errors = find_row_errors(slots, tokens, verified, failed_prompts, failures)
        if own_errors := [error for part in self._parts for error in part.errors]:
            # One a slot, the first: its processor and its grammar may both fail.
            first = {error.slot: error for error in reversed([*own_errors, *errors])}
            errors = tuple(first.values())
        tokens = np.maximum(tokens, 0)  # some rows have no token
        prompts = [part.prompt for part in self._parts if part.prompt]
        prompt_columns = [each for part in columns for each in part.prompt]
        return StepOutput(
            epoch=self._plan.epoch,
            step_id=self._plan.step_id,
            slots=slots,
            token_ids=tokens,
            num_tokens=EMPTY if verified is None else verified.num_tokens,
            num_drafts=EMPTY if verified is None else verified.num_drafts,
            num_invalid_drafts=self._num_invalid_drafts,
            logprobs=_sum([each.sampled for each in columns], [t.size for t in token_ids]),
            prompt_logprob_slots=_joined([prompt.slots for prompt in prompts]),
            prompt_logprob_positions=_joined([prompt.positions for prompt in prompts]),
            prompt_logprobs=concatenate(prompt_columns) if prompt_columns else None,
            row_errors=errors,
        )


class _Columns:
    """A part's log probabilities as columns, read from the download in `StepPart.tables` order.

    Attributes:
        failed: slots whose prompt contains a token without a finite probability.
    """

    def __init__(self, part: StepPart, arrived: Iterator[Tensor]) -> None:
        self.sampled = part.logprobs.columns(arrived) if part.logprobs else None
        if self.sampled is not None and part.verified is not None:
            self.sampled = self.sampled.take(part.verified.kept)
        tables = part.prompt.tables if part.prompt else []
        self.prompt = [table.columns(arrived) for table in tables]
        self.failed: list[int] = []
        if part.prompt and any(map(_has_nan, self.prompt)):
            is_nan = [has_nan for columns in self.prompt for has_nan in _rows_with_nan(columns)]
            self.failed = part.prompt.slots[is_nan].tolist()


def _has_nan(columns: LogprobColumns) -> bool:
    return bool(np.isnan(columns.logprobs).any())


def _rows_with_nan(columns: LogprobColumns) -> list[bool]:
    return [bool(np.isnan(logprobs).any()) for _, logprobs, _ in columns.rows()]


def find_row_errors(
    slots: IntArray,
    token_ids: IntArray,
    verified: Verified | None = None,
    failed_prompts: Sequence[int] = (),
    failures: Mapping[int, RowError] = MappingProxyType({}),
) -> tuple[RowError, ...]:
    """Errors of the sequences that no token continues or whose prompt has no log probabilities."""
    errors: dict[int, RowError] = {}
    if token_ids.size and token_ids.min() < 0:
        is_left = token_ids == NO_TOKEN_LEFT
        rows = np.arange(slots.size)
        if verified is not None:
            rows = np.repeat(rows, verified.num_tokens)
        for place in np.flatnonzero(token_ids < 0)[::-1].tolist():  # the first of a row wins
            row = int(rows[place])
            if verified is not None and _has_ended(row, place, token_ids, verified):
                continue
            slot = int(slots[row])
            error = _no_token_left(slot) if is_left[place] else _invalid_logits(slot)
            errors[slot] = failures.get(slot) or error
    errors |= {slot: _invalid_logits(slot) for slot in failed_prompts}
    return tuple(errors[slot] for slot in sorted(errors))


def _has_ended(row: int, place: int, token_ids: IntArray, verified: Verified) -> bool:
    """Whether a token before `place` ends the row's sequence: then the others are dropped."""
    start = int(verified.num_tokens[:row].sum())
    return bool(np.isin(token_ids[start:place], verified.end_token_ids[row]).any())


def _no_token_left(slot: int) -> RowError:
    return RowError(slot, RowErrorCode.NO_ALLOWED_TOKEN, _NO_TOKEN_LEFT)


def _invalid_logits(slot: int) -> RowError:
    return RowError(slot, RowErrorCode.INVALID_LOGITS, _NO_CHOICE)


def _joined(columns: Sequence[IntArray]) -> IntArray:
    if len(columns) == 1:
        return columns[0]
    return np.concatenate(columns) if columns else EMPTY


def _sum(parts: Sequence[LogprobColumns | None], num_rows: Sequence[int]) -> LogprobColumns | None:
    """Concatenate the columns; a part without any contributes rows without entries."""
    if all(part is None for part in parts):
        return None
    return concatenate(
        [
            without_entries(count) if part is None else part
            for part, count in zip(parts, num_rows, strict=True)
        ]
    )
