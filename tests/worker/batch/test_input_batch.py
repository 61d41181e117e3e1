from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.plans import GREEDY, Join, ints, join, make_plan
from taco_proto.steps import StepPlan
from taco_worker.batch.input_batch import InputBatch, StepRows
from taco_worker.batch.plan_error import PlanError
from taco_worker.batch.token_table import DeviceTokenTable, HostTokenTable
from taco_worker.devices.transfers import Transfers

MAX_NUM_SEQS, MAX_MODEL_LEN, BLOCK_SIZE, NUM_BLOCKS, VOCAB_SIZE = 4, 22, 4, 30, 50


def make_batch(*, on_device: bool = False, adapters: tuple[str, ...] = ()) -> InputBatch:
    size, transfers = (MAX_NUM_SEQS, MAX_MODEL_LEN), Transfers(torch.device("cpu"))
    return InputBatch(
        max_num_seqs=MAX_NUM_SEQS,
        max_model_len=MAX_MODEL_LEN,
        block_size=BLOCK_SIZE,
        num_blocks=NUM_BLOCKS,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=[1],
        adapters=adapters,
        tokens=DeviceTokenTable(*size, transfers) if on_device else HostTokenTable(*size),
    )


def run(batch: InputBatch, plan: StepPlan, sampled: list[int]) -> StepRows:
    rows = batch.apply(plan)
    batch.advance(rows, torch.tensor(sampled, dtype=torch.int64))
    return rows


@dataclass
class Sequence:
    """The naive model's state of one sequence."""

    tokens: list[int]
    num_prompt_tokens: int
    blocks: list[int]
    num_computed_tokens: int = 0
    num_omitted_tokens: int = 0


@dataclass
class NaiveBatch:
    slots: dict[int, Sequence] = field(default_factory=dict)

    def check(self, batch: InputBatch) -> None:
        assert np.flatnonzero(batch.is_occupied).tolist() == sorted(self.slots)
        for slot, sequence in self.slots.items():
            num_tokens = len(sequence.tokens)
            assert batch.num_tokens[slot] == num_tokens
            assert batch.num_prompt_tokens[slot] == sequence.num_prompt_tokens
            assert batch.num_computed_tokens[slot] == sequence.num_computed_tokens
            omitted = sequence.num_omitted_tokens
            known = batch.tokens.data[slot, omitted:num_tokens].tolist()
            assert known == sequence.tokens[omitted:]
            num_blocks = batch.num_blocks[slot]
            assert batch.block_tables[slot, :num_blocks].tolist() == sequence.blocks


@given(st.data(), st.booleans())
@settings(max_examples=200, deadline=None)
def test_random_valid_plans_match_a_naive_batch(data: st.DataObject, on_device: bool) -> None:
    batch, naive = make_batch(on_device=on_device), NaiveBatch()
    for step_id in range(data.draw(st.integers(1, 12))):
        left = [slot for slot in sorted(naive.slots) if data.draw(st.booleans())]
        if step_id % 3:
            left = []
        for slot in left:
            del naive.slots[slot]
        joined = _draw_joins(data, naive)
        appended = _draw_appends(data, naive)
        runs = _draw_runs(data, naive)
        sampled = {}
        for slot, count in runs.items():
            sequence = naive.slots[slot]
            sequence.num_computed_tokens += count
            if sequence.num_computed_tokens == len(sequence.tokens):
                sampled[slot] = data.draw(st.integers(0, VOCAB_SIZE - 1))
                sequence.tokens.append(sampled[slot])
        plan = make_plan(runs, joined=joined, appended=appended, left=left, step_id=step_id)
        rows = run(batch, plan, list(sampled.values()))
        assert rows.slots[rows.is_sampled].tolist() == list(sampled)
        naive.check(batch)


def _draw_joins(data: st.DataObject, naive: NaiveBatch) -> list[Join]:
    joins = []
    for slot in range(MAX_NUM_SEQS):
        if slot in naive.slots or not data.draw(st.booleans()):
            continue
        token_ids = st.integers(0, VOCAB_SIZE - 1)
        tokens = data.draw(st.lists(token_ids, min_size=1, max_size=MAX_MODEL_LEN))
        num_blocks = data.draw(st.integers(0, -(-len(tokens) // BLOCK_SIZE)))
        blocks = data.draw(
            st.lists(st.integers(0, NUM_BLOCKS - 1), min_size=num_blocks, max_size=num_blocks)
        )
        computed = data.draw(st.integers(0, min(len(tokens) - 1, num_blocks * BLOCK_SIZE)))
        num_prompt_tokens = data.draw(st.integers(1, len(tokens)))
        omitted = data.draw(st.integers(0, computed))
        naive.slots[slot] = Sequence(
            list(tokens), num_prompt_tokens, list(blocks), computed, omitted
        )
        joins.append(
            Join(
                slot,
                tokens,
                blocks,
                computed,
                num_prompt_tokens,
                num_omitted_tokens=omitted,
            )
        )
    return joins


def _draw_appends(data: st.DataObject, naive: NaiveBatch) -> list[tuple[int, int]]:
    appended = []
    for slot, sequence in naive.slots.items():
        free = -(-MAX_MODEL_LEN // BLOCK_SIZE) - len(sequence.blocks)
        for _ in range(data.draw(st.integers(0, free))):
            block = data.draw(st.integers(0, NUM_BLOCKS - 1))
            sequence.blocks.append(block)
            appended.append((slot, block))
    return appended


def _draw_runs(data: st.DataObject, naive: NaiveBatch) -> dict[int, int]:
    runs = {}
    for slot in data.draw(st.permutations(sorted(naive.slots))):
        sequence = naive.slots[slot]
        end = min(len(sequence.tokens), len(sequence.blocks) * BLOCK_SIZE)
        if len(sequence.tokens) == MAX_MODEL_LEN:
            end = min(end, MAX_MODEL_LEN - 1)
        count = data.draw(st.integers(0, max(0, end - sequence.num_computed_tokens)))
        if count:
            runs[slot] = count
    return runs


JOIN = Join(0, [3, 4, 5], [7])

ILLEGAL_FIRST_PLANS = {
    "an empty slot runs": make_plan({0: 1}),
    "an empty slot leaves": make_plan({}, left=[0]),
    "a block for an empty slot": make_plan({}, appended=[(0, 1)]),
    "a negative slot": make_plan({-1: 1}, joined=[JOIN]),
    "a slot too high": make_plan({MAX_NUM_SEQS: 1}, joined=[JOIN]),
    "joins a slot too high": make_plan({}, joined=[replace(JOIN, slot=MAX_NUM_SEQS)]),
    "joins a slot twice": make_plan({}, joined=[JOIN, JOIN]),
    "a block too high": make_plan({}, joined=[replace(JOIN, blocks=[NUM_BLOCKS])]),
    "a negative block": make_plan({}, joined=[replace(JOIN, blocks=[-1])]),
    "appends a block too high": make_plan({}, joined=[JOIN], appended=[(0, NUM_BLOCKS)]),
    "too many blocks": make_plan({}, joined=[replace(JOIN, blocks=range(7))]),
    "appends too many blocks": make_plan({}, joined=[JOIN], appended=[(0, 1)] * 6),
    "a token beyond the vocabulary": make_plan({}, joined=[replace(JOIN, token_ids=[VOCAB_SIZE])]),
    "a negative token": make_plan({}, joined=[replace(JOIN, token_ids=[-1])]),
    "too many tokens": make_plan({}, joined=[replace(JOIN, token_ids=[1] * (MAX_MODEL_LEN + 1))]),
    "no token": make_plan({}, joined=[replace(JOIN, token_ids=[])]),
    "all tokens are computed": make_plan({}, joined=[replace(JOIN, num_computed_tokens=3)]),
    "computes fewer than no tokens": make_plan({}, joined=[replace(JOIN, num_computed_tokens=-1)]),
    "omits tokens that are to be computed": make_plan(
        {}, joined=[replace(JOIN, num_computed_tokens=1, num_omitted_tokens=2)]
    ),
    "omits fewer than no tokens": make_plan({}, joined=[replace(JOIN, num_omitted_tokens=-1)]),
    "omits what a penalty reads": make_plan(
        {},
        joined=[
            replace(
                JOIN,
                num_computed_tokens=1,
                num_omitted_tokens=1,
                sampling=GREEDY.with_updates(presence_penalty=0.5),
            )
        ],
    ),
    "numbers of omitted tokens of another length": replace(
        make_plan({}), joined=replace(join([JOIN]), num_omitted_tokens=ints([0, 0]))
    ),
    "more prompt than tokens": make_plan({}, joined=[replace(JOIN, num_prompt_tokens=4)]),
    "runs no token": make_plan({0: 0}, joined=[JOIN]),
    "runs a negative number of tokens": make_plan({0: -1}, joined=[JOIN]),
    "runs an unknown token": make_plan({0: 4}, joined=[JOIN]),
    "runs more tokens than there are numbers": make_plan(
        {0: 2**31 - 1}, joined=[replace(JOIN, num_computed_tokens=2)]
    ),
    "runs without blocks": make_plan({0: 3}, joined=[replace(JOIN, blocks=[])]),
    "runs more tokens than blocks hold": make_plan(
        {0: 5}, joined=[replace(JOIN, token_ids=[1] * 6)]
    ),
    "runs a slot twice": replace(
        make_plan({}, joined=[JOIN]), slots=ints([0, 0]), num_tokens=ints([1, 1])
    ),
    "grows beyond the longest sequence": make_plan(
        {0: MAX_MODEL_LEN}, joined=[Join(0, [1] * MAX_MODEL_LEN, range(6))]
    ),
    "columns of different lengths": replace(make_plan({0: 1}, joined=[JOIN]), num_tokens=ints([])),
    "appended columns of different lengths": replace(
        make_plan({}, joined=[JOIN]), appended_slots=ints([0, 0]), appended_blocks=ints([1])
    ),
    "too few sampling parameters": replace(
        make_plan({}), joined=replace(join([JOIN]), sampling=())
    ),
    "too few tokens": replace(make_plan({}), joined=replace(join([JOIN]), token_ids=ints([3]))),
    "too many block ids": replace(
        make_plan({}), joined=replace(join([JOIN]), block_ids=ints([3, 4]))
    ),
}


@pytest.mark.parametrize("plan", ILLEGAL_FIRST_PLANS.values(), ids=ILLEGAL_FIRST_PLANS.keys())
def test_a_plan_that_contradicts_the_batch_is_rejected(plan: StepPlan) -> None:
    with pytest.raises(PlanError):
        make_batch().apply(plan)


def test_an_occupied_slot_cannot_be_joined() -> None:
    batch = make_batch()
    batch.apply(make_plan({}, joined=[JOIN]))
    with pytest.raises(PlanError, match="occupied"):
        batch.apply(make_plan({}, joined=[JOIN]))


def test_a_slot_can_be_joined_by_the_plan_that_empties_it() -> None:
    batch = make_batch()
    run(batch, make_plan({0: 3}, joined=[JOIN]), [9])
    run(batch, make_plan({0: 2}, left=[0], joined=[Join(0, [8, 7], [2])]), [6])
    assert batch.tokens.data[0, :3].tolist() == [8, 7, 6]
    assert batch.num_tokens[0] == 3


def test_joining_replaces_the_slots_sampling_parameters() -> None:
    batch = make_batch()
    loud = GREEDY.with_updates(
        temperature=1.0, logit_bias={3: 1.0}, min_tokens=3, logprobs=2, top_k=3
    )
    batch.apply(make_plan({}, joined=[replace(JOIN, sampling=loud)]))
    assert batch.sampling.features[0] != 0
    batch.apply(make_plan({}, left=[0], joined=[JOIN]))
    assert batch.sampling.features[0] == 0
    assert batch.sampling.bias_token_ids[0].size == 0


def test_clearing_empties_every_slot() -> None:
    batch = make_batch()
    batch.apply(make_plan({}, joined=[JOIN]))
    batch.clear()
    batch.apply(make_plan({0: 3}, joined=[JOIN]))


def test_a_slot_has_the_adapter_of_its_last_sequence() -> None:
    batch = make_batch(adapters=("sql", "chat"))
    joined = [
        Join(0, [5], [1], adapter="chat"),
        Join(2, [5], [2]),
        Join(3, [5], [3], adapter="sql"),
    ]
    batch.apply(make_plan({0: 1}, joined=joined))
    assert batch.adapter_ids[[0, 2, 3]].tolist() == [1, -1, 0]
    assert [batch.has_adapters(ints(slots)) for slots in ([2], [2, 3], [])] == [False, True, False]
    batch.apply(make_plan({0: 1}, left=[0, 3], joined=[Join(0, [5], [4])]))
    assert batch.adapter_ids[0] == -1


def test_adapters_that_do_not_fit_are_plan_errors() -> None:
    batch = make_batch(adapters=("sql",))
    with pytest.raises(PlanError, match="unknown adapter 'chat'"):
        batch.apply(make_plan({0: 1}, joined=[Join(0, [5], [1], adapter="chat")]))
    batch.clear()
    plan = make_plan({0: 1}, joined=[Join(0, [5], [1])])
    assert plan.joined is not None
    wrong = replace(plan, joined=replace(plan.joined, adapters=("sql", "sql")))
    with pytest.raises(PlanError, match="differ in length"):
        batch.apply(wrong)
