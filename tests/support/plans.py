"""Step plans written by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import IntArray, JoinedSequences, StepPlan

GREEDY = SamplingParams(temperature=0.0, seed=0)


def ints(values: Sequence[int]) -> IntArray:
    return np.array(values, dtype=np.int32)


@dataclass(frozen=True)
class Join:
    """A sequence that joins; its prompt is all of `token_ids` unless said otherwise."""

    slot: int
    token_ids: Sequence[int]
    blocks: Sequence[int]
    num_computed_tokens: int = 0
    num_prompt_tokens: int | None = None
    sampling: SamplingParams = GREEDY
    num_omitted_tokens: int = 0
    adapter: str = ""


def join(sequences: Sequence[Join]) -> JoinedSequences:
    prompts = [s.num_prompt_tokens or len(s.token_ids) for s in sequences]
    return JoinedSequences(
        slots=ints([s.slot for s in sequences]),
        num_prompt_tokens=ints(prompts),
        num_tokens=ints([len(s.token_ids) for s in sequences]),
        num_computed_tokens=ints([s.num_computed_tokens for s in sequences]),
        token_ids=ints([t for s in sequences for t in s.token_ids[max(0, s.num_omitted_tokens) :]]),
        num_omitted_tokens=ints([s.num_omitted_tokens for s in sequences]),
        num_blocks=ints([len(s.blocks) for s in sequences]),
        block_ids=ints([block for s in sequences for block in s.blocks]),
        sampling=tuple(s.sampling for s in sequences),
        adapters=tuple(s.adapter for s in sequences) if any(s.adapter for s in sequences) else (),
    )


def make_plan(
    run: Mapping[int, int],
    *,
    joined: Sequence[Join] = (),
    appended: Sequence[tuple[int, int]] = (),
    left: Sequence[int] = (),
    epoch: int = 1,
    step_id: int = 1,
) -> StepPlan:
    """`run` maps slots to numbers of tokens; `appended` holds pairs of slot and block."""
    return StepPlan(
        epoch=epoch,
        step_id=step_id,
        slots=ints(list(run)),
        num_tokens=ints(list(run.values())),
        left_slots=ints(left),
        joined=join(joined) if joined else None,
        appended_slots=ints([slot for slot, _ in appended]),
        appended_blocks=ints([block for _, block in appended]),
    )
