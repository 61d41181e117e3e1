"""Steps in flight: plans that were sent and not answered, and the check of their outputs."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from taco_proto.logprobs import LogprobColumns
from taco_proto.steps import IntArray, StepOutput
from taco_scheduler.state.batch import BoolArray, LongArray


class InvalidOutputError(ValueError):
    """A worker sent an output that does not answer its oldest plan."""


class StaleOutputError(InvalidOutputError):
    """The output answers a plan that the worker got before it was lost and attached again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightStep:
    """The rows of a plan, which its output is checked against.

    Attributes:
        generations: slot generation of each row.
        sampled_slots, sampled_generations: of the rows that sample.
        max_drafts: draft tokens that each sampling row may verify.
        ran_alone: no other step was in flight when it was planned.
    """

    step_id: int
    slots: IntArray
    num_tokens: IntArray
    generations: LongArray
    sampled_slots: IntArray
    sampled_generations: LongArray
    max_drafts: IntArray
    planned_at: float
    ran_alone: bool
    only_decodes: bool


@dataclass(slots=True)
class InFlight:
    """Steps in the order of their plans; the worker answers in that order.

    Attributes:
        last_begun: id of the newest announced step that the worker has begun.
    """

    steps: deque[InFlightStep] = field(default_factory=deque)
    last_begun: int = 0

    def __len__(self) -> int:
        return len(self.steps)

    def is_in_flight(self, generations: LongArray) -> BoolArray:
        """Mask of the slot generations that a step in flight runs."""
        mask = np.zeros(generations.shape, dtype=np.bool_)
        for step in self.steps:
            mask |= np.isin(generations, step.generations)
        return mask & (generations >= 0)

    def num_unconfirmed_tokens(self, generation: int) -> int:
        """Tokens whose KV the steps in flight compute for a slot generation."""
        return sum(
            int(step.num_tokens[step.generations == generation].sum()) for step in self.steps
        )

    def num_sampling_steps(self, generation: int) -> int:
        """Steps in flight that sample for a slot generation."""
        return sum(
            int(np.count_nonzero(step.sampled_generations == generation)) for step in self.steps
        )

    def oldest(self, step_id: int) -> InFlightStep:
        """The oldest step, which the next output must answer.

        Raises:
            InvalidOutputError: it does not have this id.
        """
        if not self.steps or self.steps[0].step_id != step_id:
            raise InvalidOutputError(f"the oldest plan in flight is not {step_id}")
        return self.steps[0]


def check_output(step: InFlightStep, output: StepOutput, vocab_size: int) -> None:
    """Check an output before it is committed.

    Raises:
        InvalidOutputError: its rows are not those of the step, a token id is not in the
            vocabulary, or columns differ in length.
    """
    tokens = output.token_ids
    if not np.array_equal(output.slots, step.sampled_slots):
        raise InvalidOutputError("the rows are not those that the plan samples, in its order")
    _check_drafts(step, output)
    if tokens.size and (tokens.min() < 0 or tokens.max() >= vocab_size):
        raise InvalidOutputError("a token id is out of range")
    _check_logprobs(output.logprobs, len(tokens), vocab_size)
    prompt_slots = output.prompt_logprob_slots
    if prompt_slots.size or output.prompt_logprobs is not None:
        _check_logprobs(output.prompt_logprobs, len(prompt_slots), vocab_size)
        if output.prompt_logprobs is not None and not prompt_slots.size:
            raise InvalidOutputError("prompt log probabilities have no rows")
        if len(output.prompt_logprob_positions) != len(prompt_slots):
            raise InvalidOutputError("prompt log probabilities do not have one position a row")
        if not np.isin(prompt_slots, step.slots).all():
            raise InvalidOutputError("prompt log probabilities are of a slot that did not run")
    if output.row_errors:
        failed_slots = [error.slot for error in output.row_errors]
        if len(set(failed_slots)) < len(failed_slots):
            raise InvalidOutputError("a slot has two row errors")
        if not np.isin(failed_slots, step.slots).all():
            raise InvalidOutputError("a row error is of a slot that did not run")


def _check_drafts(step: InFlightStep, output: StepOutput) -> None:
    num_rows, num_tokens, num_drafts = output.slots.size, output.num_tokens, output.num_drafts
    if num_drafts.size:
        if num_drafts.size != num_rows or num_tokens.size != num_rows:
            raise InvalidOutputError("numbers of tokens and of drafts are not one a row")
        if (num_drafts < 0).any() or (num_drafts > step.max_drafts).any():
            raise InvalidOutputError("a row verified more drafts than it may")
        if (num_tokens < 1).any() or (num_tokens > num_drafts + 1).any():
            raise InvalidOutputError("a row has more tokens than its drafts can give")
    elif num_tokens.size:
        raise InvalidOutputError("rows without drafts have numbers of tokens")
    if output.token_ids.size != (num_tokens.sum() if num_tokens.size else num_rows):
        raise InvalidOutputError("there are not as many tokens as the rows have")


def _check_logprobs(columns: LogprobColumns | None, num_rows: int, vocab_size: int) -> None:
    if columns is None:
        return
    num_entries = columns.num_entries
    lengths = {columns.token_ids.size, columns.logprobs.size, columns.ranks.size}
    if num_entries.size != num_rows or lengths != {int(num_entries.sum(dtype=np.int64))}:
        raise InvalidOutputError("log probability columns differ in length")
    if num_rows and num_entries.min() < 0:
        raise InvalidOutputError("a row of log probabilities has a negative number of entries")
    ids = columns.token_ids
    if ids.size and (ids.min() < 0 or ids.max() >= vocab_size):
        raise InvalidOutputError("a token id of a log probability is out of range")
