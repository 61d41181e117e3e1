"""The tokens of a step that are known before the model runs, because grammars force them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taco_proto.steps import IntArray
from taco_worker.batch.input_batch import StepRows
from taco_worker.sampling.slot_params import NO_LOGPROBS, Array, Feature, SlotSamplingParams

# They may ban even the forced token, which is then an error.
_BANS_TOKENS = int(
    Feature.LOGIT_BIAS
    | Feature.MIN_TOKENS
    | Feature.NO_REPEAT_NGRAM
    | Feature.ALLOWED_TOKENS
    | Feature.BAD_WORDS
)


@dataclass(frozen=True, slots=True)
class ForcedOutputs:
    """The outputs of a step whose drafts are all forced.

    Attributes:
        token_ids: int64 [num_outputs], the forced token of each output; undefined for the others.
        rest: int64, the outputs that have to be sampled, ascending.
        slots: the slots of these.
    """

    token_ids: Array
    rest: Array
    slots: IntArray


def find_forced_outputs(rows: StepRows, sampling: SlotSamplingParams) -> ForcedOutputs | None:
    """The forced outputs of a step, which need no logits.

    Returns:
        None if sequences want log probabilities, which are those of all tokens.
    """
    assert rows.trees is not None
    num_outputs = rows.num_outputs()
    slots = rows.output_slots()
    if (sampling.logprobs[slots] != NO_LOGPROBS).any():
        return None
    is_rest = np.zeros(slots.size, dtype=np.bool_)
    is_rest[np.cumsum(num_outputs)[rows.is_sampled] - 1] = True
    token_ids = np.zeros(slots.size, dtype=np.int64)
    token_ids[~is_rest] = rows.trees.token_ids
    is_rest |= (sampling.features[slots] & _BANS_TOKENS) != 0
    rest = np.flatnonzero(is_rest)
    return ForcedOutputs(token_ids, rest, slots[rest])
