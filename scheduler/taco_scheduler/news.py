"""The new tokens of a step, row after row."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from taco_proto.logprobs import LogprobColumns
from taco_proto.steps import IntArray, StepOutput

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class News:
    """Attributes:
    slots: int32 [num_rows].
    num_tokens: int32 [num_rows], at least one each.
    tokens: int32 [sum(num_tokens)].
    logprobs: a row a token; None: nobody asked.
    """

    slots: IntArray
    num_tokens: IntArray
    tokens: IntArray
    logprobs: LogprobColumns | None

    def select(self, is_wanted: BoolArray) -> "News":
        """Some rows."""
        return self._keep(is_wanted, np.repeat(is_wanted, self.num_tokens), self.num_tokens)

    def without_tokens(self, is_dropped: BoolArray) -> "News":
        """All rows, without some of their tokens."""
        rows = np.repeat(np.arange(self.slots.size), self.num_tokens)
        num_tokens = np.bincount(rows[~is_dropped], minlength=self.slots.size).astype(np.int32)
        return self._keep(np.ones(self.slots.size, np.bool_), ~is_dropped, num_tokens)

    def _keep(self, rows: BoolArray, tokens: BoolArray, num_tokens: IntArray) -> "News":
        logprobs = self.logprobs
        if logprobs is not None:
            logprobs = logprobs.select(np.flatnonzero(tokens).tolist())
        return News(self.slots[rows], num_tokens[rows], self.tokens[tokens], logprobs)


def news_of(output: StepOutput) -> News:
    num_tokens = output.num_tokens if output.num_tokens.size else np.ones_like(output.slots)
    return News(output.slots, num_tokens, output.token_ids, output.logprobs)
