"""Usual decode steps give what other steps give; what they cannot run changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from ctypes import c_float, c_int32
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from support.adapters import make_adapter
from support.checkpoints import make_checkpoint
from support.models import kernels_for
from support.plans import GREEDY, Join, ints, make_plan
from taco_kernels.native.decode_rows import DecodeRows, SlotColumns
from taco_kernels.sampling_metadata import NO_TOKEN
from taco_proto.config import ModelConfig, WorkerConfig
from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import IntArray, RowErrorCode, StepOutput, StepPlan
from taco_worker.batch.input_batch import InputBatch
from taco_worker.batch.token_table import HostTokenTable
from taco_worker.execution.decode_steps import DecodeSteps
from taco_worker.execution.launched_step import LaunchedStep
from taco_worker.worker import Worker

MAX_NUM_SEQS, MAX_MODEL_LEN, BLOCK_SIZE, NUM_BLOCKS, VOCAB_SIZE = 4, 12, 4, 30, 50
OWN_LOGPROB = GREEDY.with_updates(logprobs=0)
RANDOM = SamplingParams(temperature=0.7, seed=1)


class FakeModel:
    """Its most likely token is the sum of a row's token, position and last block."""

    def __init__(self, error: Exception | None = None) -> None:
        self.fails_rows = False
        self._error = error

    def decoding(self, rows: DecodeRows) -> Callable[[], None]:
        def run() -> None:
            if self._error is not None:
                raise self._error
            count, width = rows.fields.num_rows, rows.fields.table_columns
            read = {
                name: (c_int32 * (count * width)).from_address(rows.addresses[name])
                for name in ("token_ids", "positions", "seq_lens", "block_tables", "sampled")
            }
            logprobs = (c_float * count).from_address(rows.addresses["logprobs"])
            for row in range(count):
                assert read["seq_lens"][row] == read["positions"][row] + 1
                block = read["block_tables"][row * width + read["positions"][row] // BLOCK_SIZE]
                total = read["token_ids"][row] + read["positions"][row] + block
                read["sampled"][row] = NO_TOKEN if self.fails_rows else total
                logprobs[row] = -row

        return run


def make_batch(*joined: Join) -> InputBatch:
    """A batch whose sequences lack the KV of their last token."""
    batch = InputBatch(
        max_num_seqs=MAX_NUM_SEQS,
        max_model_len=MAX_MODEL_LEN,
        block_size=BLOCK_SIZE,
        num_blocks=NUM_BLOCKS,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=[1],
        tokens=HostTokenTable(MAX_NUM_SEQS, MAX_MODEL_LEN),
    )
    ready = [replace(each, num_computed_tokens=len(each.token_ids) - 1) for each in joined]
    batch.apply(make_plan({}, joined=ready))
    return batch


def decode_steps(batch: InputBatch, model: FakeModel | None = None) -> DecodeSteps:
    assert isinstance(batch.tokens, HostTokenTable)
    return DecodeSteps(batch, batch.tokens.array, model or FakeModel())


def state(batch: InputBatch) -> list[list[int]]:
    tokens = batch.tokens.data.numpy()
    used: list[IntArray] = [
        batch.block_tables[slot, :count] for slot, count in enumerate(batch.num_blocks)
    ]
    known: list[IntArray] = [tokens[slot, :count] for slot, count in enumerate(batch.num_tokens)]
    columns = (batch.num_tokens, batch.num_computed_tokens, batch.num_blocks)
    return [column.tolist() for column in (*columns, *used, *known)]


def test_rows_get_the_tokens_of_their_own_input() -> None:
    batch = make_batch(
        Join(2, [7, 8, 9], [5], sampling=OWN_LOGPROB),
        Join(0, [4, 4, 4, 6], [3]),
        Join(3, [1, 2], [20], sampling=OWN_LOGPROB),
    )
    steps = decode_steps(batch)

    first = steps.run(make_plan({2: 1, 0: 1, 3: 1}))
    assert first is not None
    assert first.slots.tolist() == [2, 0, 3]
    assert first.token_ids.tolist() == [9 + 2 + 5, 6 + 3 + 3, 2 + 1 + 20]
    assert first.logprobs is not None
    assert list(first.logprobs.rows()) == [([16], [0.0], [1]), ([], [], []), ([23], [-2.0], [1])]

    second = steps.run(make_plan({0: 1, 2: 1}, appended=[(0, 9)]))
    assert second is not None
    assert second.token_ids.tolist() == [12 + 4 + 9, 16 + 3 + 5]
    assert batch.tokens.at(ints([0, 0, 3]), ints([4, 5, 2])).tolist() == [12, 25, 23]


PLANS: Mapping[str, StepPlan] = {
    "no row": make_plan({}),
    "two tokens": make_plan({0: 2}),
    "a prompt": make_plan({1: 1}),
    "an empty slot": make_plan({0: 1, 3: 1}),
    "no such slot": make_plan({0: 1, MAX_NUM_SEQS: 1}),
    "a negative slot": make_plan({-1: 1}),
    "a slot twice": replace(make_plan({0: 1}), slots=ints([0, 0]), num_tokens=ints([1, 1])),
    "too many rows": replace(make_plan({}), slots=ints([0] * 5), num_tokens=ints([1] * 5)),
    "random tokens": make_plan({0: 1, 2: 1}),
    "a full block": make_plan({0: 1}),
    "no such block": make_plan({0: 1}, appended=[(0, 7), (0, NUM_BLOCKS)]),
    "too many blocks": make_plan({0: 1}, appended=[(0, 7)] * 3),
    "a sequence that leaves": make_plan({0: 1}, left=[2]),
    "columns of other lengths": replace(make_plan({0: 1}), num_tokens=ints([1, 1])),
    "64-bit slots": replace(make_plan({0: 1}), slots=np.array([0])),
    "drafts": replace(make_plan({0: 1}, appended=[(0, 7)]), max_drafts=ints([1])),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_what_is_no_usual_decode_step_changes_nothing(plan: StepPlan) -> None:
    batch = make_batch(
        Join(0, [4, 4, 4, 6, 5], [3]),  # its block is full
        Join(2, [7, 8, 9], [5], sampling=RANDOM),
    )
    batch.apply(make_plan({}, joined=[Join(1, [5, 6, 7], [8])]))
    before = state(batch)

    steps = decode_steps(batch)
    assert steps.run(plan) is None
    assert state(batch) == before
    assert steps.run(make_plan({0: 1}, appended=[(0, 7)])) is not None


def test_the_longest_sequence_is_left_to_the_check_of_other_steps() -> None:
    batch = make_batch(Join(0, [3] * MAX_MODEL_LEN, [1, 2, 3]))
    assert decode_steps(batch).run(make_plan({0: 1})) is None


def test_rows_without_a_likeliest_token_fail_and_go_on_with_token_0() -> None:
    model = FakeModel()
    model.fails_rows = True
    batch = make_batch(Join(1, [7, 8], [5], sampling=OWN_LOGPROB))
    output = decode_steps(batch, model).run(make_plan({1: 1}))
    assert output is not None
    assert output.token_ids.tolist() == [0]
    assert [(error.slot, error.code) for error in output.row_errors] == [
        (1, RowErrorCode.INVALID_LOGITS)
    ]
    assert batch.tokens.at(ints([1]), ints([2])).tolist() == [0]


def test_out_of_memory_undoes_the_step() -> None:
    batch = make_batch(Join(0, [4, 4, 4, 6, 5], [3]))
    before = state(batch)
    steps = decode_steps(batch, FakeModel(MemoryError()))
    assert steps.run(make_plan({0: 1}, appended=[(0, 7)])) is None
    assert state(batch) == before


def test_columns_of_other_types_are_refused() -> None:
    slots = np.zeros((4, 8), dtype=np.int64)
    with pytest.raises(ValueError, match="token_ids must be contiguous int32"):
        SlotColumns.of(block_size=4, num_kv_blocks=8, not_greedy=0, token_ids=slots)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


def outputs_of(worker: Worker, adapters: Sequence[str]) -> list[StepOutput]:
    """A prefill, decode steps across the end of a block, and a step with a random row.

    Args:
        adapters: of the first three sequences.
    """
    prompts = [[5, 17, 300, 42, 9, 77, 130, 6, 250], list(range(3, 18)), [8]]
    joined = [
        Join(0, prompts[0], [3, 11], adapter=adapters[0]),
        Join(4, prompts[1], [7], sampling=OWN_LOGPROB, adapter=adapters[1]),
        Join(2, prompts[2], [9], sampling=OWN_LOGPROB, adapter=adapters[2]),
    ]
    late = Join(5, [40, 41], [13], sampling=RANDOM)
    plans = [
        make_plan({0: 9, 4: 15, 2: 1}, joined=joined, step_id=1),
        make_plan({2: 1, 0: 1, 4: 1}, step_id=2),
        make_plan({4: 1, 0: 1, 2: 1}, appended=[(4, 20)], step_id=3),
        make_plan({4: 1, 2: 1}, step_id=4),
        make_plan({5: 2, 4: 1}, joined=[late], left=[2], step_id=5),
        make_plan({4: 1, 5: 1, 0: 1}, step_id=6),
        make_plan({4: 1, 0: 1}, step_id=7),
    ]
    return [worker.execute(plan) for plan in plans]


@pytest.mark.parametrize("adapters", [("", "", ""), ("one", "", "other"), ("", "one", "")])
def test_all_outputs_equal_those_without_decode_steps(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adapters: tuple[str, ...]
) -> None:
    names = sorted({*adapters} - {""})
    modules = tuple(
        (name, str(make_adapter(tmp_path / name, checkpoint, seed=i)))
        for i, name in enumerate(names)
    )
    model = ModelConfig(model=str(checkpoint), lora_modules=modules)
    config = WorkerConfig(model=model, num_blocks=64, max_num_seqs=8)
    worker, other = (Worker(config, lambda _: kernels_for("kernels", 1)) for _ in range(2))
    other._runner._decode_steps = None
    launched: list[int] = []
    launch = worker._runner._launch

    def record(plan: StepPlan) -> LaunchedStep:
        launched.append(plan.step_id)
        return launch(plan)

    monkeypatch.setattr(worker._runner, "_launch", record)

    for one, wanted in zip(outputs_of(worker, adapters), outputs_of(other, adapters), strict=True):
        assert wanted.error == ""
        for column in fields(StepOutput):
            found, expected = getattr(one, column.name), getattr(wanted, column.name)
            assert np.array_equal(found, expected) if hasattr(found, "dtype") else found == expected
    assert launched == [1, 5, 6]
