"""The new tokens of one step, as columns over its rows."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from taco_proto.logprobs import LogprobColumns
from taco_proto.steps import IntArray, StepOutput

BoolArray = npt.NDArray[np.bool_]
RowNumbers = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class OutputTokens:
    """New tokens of a step.

    Attributes:
        slots: int32 [num_rows].
        num_tokens: int32 [num_rows], each at least 1.
        tokens: int32 [sum(num_tokens)], row after row.
        logprobs: one row a token; None: no request asked for log probabilities.
    """

    slots: IntArray
    num_tokens: IntArray
    tokens: IntArray
    logprobs: LogprobColumns | None

    @classmethod
    def of(cls, output: StepOutput) -> "OutputTokens":
        """The tokens of a checked output."""
        num_tokens = output.num_tokens if output.num_tokens.size else np.ones_like(output.slots)
        return cls(output.slots, num_tokens, output.token_ids, output.logprobs)

    def take(self, rows: RowNumbers) -> "OutputTokens":
        """The rows with these numbers, in this order."""
        num_tokens = self.num_tokens[rows]
        tokens = rows
        if self.tokens.size > self.slots.size:
            starts = (np.cumsum(self.num_tokens) - self.num_tokens)[rows]
            tokens = np.repeat(starts - (np.cumsum(num_tokens) - num_tokens), num_tokens)
            tokens += np.arange(tokens.size)
        return self._keep(rows, tokens, num_tokens)

    def without_tokens(self, is_dropped: BoolArray) -> "OutputTokens":
        """All rows, without the tokens of a mask over `tokens`."""
        rows = np.repeat(np.arange(self.slots.size), self.num_tokens)
        num_tokens = np.bincount(rows[~is_dropped], minlength=self.slots.size).astype(np.int32)
        return self._keep(np.arange(self.slots.size), np.flatnonzero(~is_dropped), num_tokens)

    def _keep(self, rows: RowNumbers, tokens: RowNumbers, num_tokens: IntArray) -> "OutputTokens":
        logprobs = None if self.logprobs is None else self.logprobs.take(tokens)
        return OutputTokens(self.slots[rows], num_tokens, self.tokens[tokens], logprobs)
