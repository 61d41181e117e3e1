"""Finds the tokens of a step whose outputs give prompt log probabilities (`prompt_logprobs`)."""

from dataclasses import dataclass

import numpy as np

from taco_proto.steps import IntArray
from taco_worker.batch.input_batch import InputBatch, StepRows
from taco_worker.sampling.slot_params import Feature

_PROMPT_LOGPROBS = int(Feature.PROMPT_LOGPROBS)


@dataclass(frozen=True, slots=True)
class PromptLogprobRows:
    """Prompt tokens whose log probabilities were requested.

    Attributes:
        slots, positions: of the predicted tokens.
        sources: the step's tokens that predict them.
    """

    slots: IntArray
    positions: IntArray
    sources: IntArray


def find_prompt_logprob_rows(
    batch: InputBatch, rows: StepRows, ends: IntArray
) -> PromptLogprobRows | None:
    """Find the prompt tokens that this step predicts for sequences with `prompt_logprobs`.

    Args:
        ends: for each row, the end of its tokens among the step's tokens.
    """
    is_asked = (batch.sampling.features[rows.slots] & _PROMPT_LOGPROBS) != 0
    if not is_asked.any():
        return None
    slots: list[IntArray] = []
    positions: list[IntArray] = []
    sources: list[IntArray] = []
    for row in np.flatnonzero(is_asked):
        slot, first = rows.slots[row], rows.num_computed_tokens[row] + 1
        end = min(first + rows.num_new_tokens[row], batch.num_prompt_tokens[slot])
        predicted = np.arange(first, end, dtype=np.int32)
        slots.append(np.full(predicted.size, slot, dtype=np.int32))
        positions.append(predicted)
        sources.append(ends[row] - rows.num_new_tokens[row] + predicted - first)
    found = PromptLogprobRows(*(np.concatenate(column) for column in (slots, positions, sources)))
    return found if found.slots.size else None
