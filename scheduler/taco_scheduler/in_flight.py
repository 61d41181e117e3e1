"""The steps that were sent and whose outputs have not come yet."""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from taco_proto.logprobs import LogprobColumns
from taco_proto.steps import IntArray, StepOutput
from taco_scheduler.batch import LongArray


class InvalidOutputError(ValueError):
    """A worker sent something that is no answer to its oldest plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightStep:
    """What an output is read against: whose rows the plan had. `sampled_*` are the rows that
    sample.
    """

    step_id: int
    slots: IntArray
    num_tokens: IntArray
    tenures: LongArray
    sampled_slots: IntArray
    sampled_tenures: LongArray


@dataclass(slots=True)
class InFlight:
    """Steps in the order in which they were sent; the worker answers in that order."""

    steps: deque[InFlightStep] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self.steps)

    def num_unconfirmed_tokens(self, tenure: int) -> int:
        """Tokens of one stay in a slot whose KV the steps in flight compute."""
        return sum(int(step.num_tokens[step.tenures == tenure].sum()) for step in self.steps)

    def num_sampled_tokens(self, tenure: int) -> int:
        """Tokens that the steps in flight sample for one stay in a slot."""
        return sum(int(np.count_nonzero(step.sampled_tenures == tenure)) for step in self.steps)

    def oldest(self, step_id: int) -> InFlightStep:
        """The step whose output is due.

        Raises:
            InvalidOutputError: its id is another.
        """
        if not self.steps or self.steps[0].step_id != step_id:
            raise InvalidOutputError(f"no plan {step_id} is waiting for its output")
        return self.steps[0]


def check_output(step: InFlightStep, output: StepOutput, vocab_size: int) -> None:
    """Raises: InvalidOutputError: rows are missing, doubled or foreign, or a token is not in the
    vocabulary.
    """
    tokens = output.token_ids
    if not np.array_equal(output.slots, step.sampled_slots) or len(tokens) != len(output.slots):
        raise InvalidOutputError("the rows are not those that the plan samples, in its order")
    if tokens.size and (tokens.min() < 0 or tokens.max() >= vocab_size):
        raise InvalidOutputError("a token id is out of range")
    _check_logprobs(output.logprobs, len(tokens))
    prompt_slots = output.prompt_logprob_slots
    if prompt_slots.size or output.prompt_logprobs is not None:
        _check_logprobs(output.prompt_logprobs, len(prompt_slots))
        if len(output.prompt_logprob_positions) != len(prompt_slots):
            raise InvalidOutputError("prompt log probabilities do not have one position a row")
        if not np.isin(prompt_slots, step.slots).all():
            raise InvalidOutputError("prompt log probabilities are of a slot that did not run")


def _check_logprobs(columns: LogprobColumns | None, num_rows: int) -> None:
    if columns is None:
        return
    num_entries = sum(columns.num_entries)
    lengths = {len(columns.token_ids), len(columns.logprobs), len(columns.ranks)}
    if len(columns.num_entries) != num_rows or lengths != {num_entries}:
        raise InvalidOutputError("log probability columns differ in length")
