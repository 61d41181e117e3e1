import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.checkpoints import make_checkpoint
from support.patience import PATIENCE_SECONDS
from support.plans import GREEDY, Join, ints, make_plan
from taco_kernels.native.draft_trees import DraftTrees
from taco_proto.config import ModelConfig, WorkerConfig
from taco_proto.sampling_params import SamplingParams
from taco_worker.batch.input_batch import StepRows
from taco_worker.execution.out_of_memory import split_on_out_of_memory
from taco_worker.models.step_model import ModelInput
from taco_worker.worker import Worker


def flatten(rows: StepRows) -> list[tuple[int, int, bool]]:
    """(slot, position, is sampled) of every token, in order."""
    tokens = []
    for slot, start, count, is_sampled in zip(
        rows.slots, rows.num_computed_tokens, rows.num_new_tokens, rows.is_sampled, strict=True
    ):
        last = start + count - 1
        tokens += [
            (int(slot), int(i), bool(is_sampled and i == last)) for i in range(start, last + 1)
        ]
    return tokens


@given(
    rows=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9), st.booleans()), min_size=1),
    limit=st.integers(1, 30),
)
@settings(deadline=None)
def test_halves_contain_the_same_tokens(rows: list[tuple[int, int, bool]], limit: int) -> None:
    whole = StepRows(
        slots=np.arange(len(rows), dtype=np.int32),
        num_computed_tokens=ints([start for start, _, _ in rows]),
        num_new_tokens=ints([count for _, count, _ in rows]),
        is_sampled=np.array([is_sampled for _, _, is_sampled in rows]),
        max_drafts=np.zeros(len(rows), dtype=np.int32),
    )

    def run(part: StepRows) -> StepRows:
        if part.num_new_tokens.sum() > limit:
            raise torch.OutOfMemoryError("too little")
        return part

    parts = split_on_out_of_memory(run, whole)
    assert [token for part in parts for token in flatten(part)] == flatten(whole)


def test_a_step_of_one_token_that_does_not_fit_fails() -> None:
    def run(part: StepRows) -> None:
        raise torch.OutOfMemoryError(f"{part.num_new_tokens.sum()} tokens")

    one = ints([1])
    rows = StepRows(one, ints([0]), ints([4]), np.array([True]), ints([0]))
    with pytest.raises(torch.OutOfMemoryError, match="1 tokens"):
        split_on_out_of_memory(run, rows)


def test_rows_without_their_drafts_have_no_forced_ones() -> None:
    """A step of forced tokens that runs out of memory is retried without drafts."""
    one = ints([1])
    rows = StepRows(one, ints([4]), one, np.array([True]), ints([2]))
    trees = DraftTrees(ints([2]), ints([7, 8]), ints([-1, 0]), ints([0, 0]))
    drafted = rows.with_drafts(trees, forced=True)
    sizes = []

    def run(part: StepRows) -> StepRows:
        sizes.append(int(part.num_new_tokens.sum()))
        if part.trees is not None:
            raise torch.OutOfMemoryError("too little")
        return part

    (retried,) = split_on_out_of_memory(run, drafted)
    assert sizes == [3, 1]
    assert not retried.are_forced


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Worker:
    path = make_checkpoint(tmp_path_factory.mktemp("llama"))
    model = ModelConfig(model=str(path), dtype="float32")
    return Worker(WorkerConfig(model=model, num_blocks=64, max_num_seqs=8, num_threads=1))


def test_a_step_is_split_on_out_of_memory(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asks = SamplingParams(temperature=0.0, seed=1, logprobs=2, prompt_logprobs=1)
    joined = [
        Join(0, list(range(3, 20)), [1, 2]),
        Join(1, [5, 6, 7], [3], sampling=asks),
        Join(2, list(range(8, 20)), [4], sampling=asks),
        Join(3, [9], [5], sampling=GREEDY),
    ]
    plan = make_plan({0: 17, 1: 3, 2: 12, 3: 1}, joined=joined, epoch=1)
    expected = worker.execute(plan)
    expected_next = worker.execute(make_plan({0: 1, 1: 1, 2: 1, 3: 1}, epoch=1, step_id=2))

    forward = worker._model.forward

    def narrow(inputs: ModelInput) -> Any:
        if inputs.positions.size > 9:
            raise torch.OutOfMemoryError("CUDA out of memory.\nmore of it")
        return forward(inputs)

    monkeypatch.setattr(worker._model, "forward", narrow)
    output = worker.execute(make_plan({0: 17, 1: 3, 2: 12, 3: 1}, joined=joined, epoch=2))
    assert "retrying it as smaller steps: CUDA out of memory." in caplog.text
    assert not output.error
    assert output.slots.tolist() == expected.slots.tolist()
    assert output.token_ids.tolist() == expected.token_ids.tolist()
    assert output.logprobs == expected.logprobs
    assert output.prompt_logprob_slots.tolist() == expected.prompt_logprob_slots.tolist()
    assert output.prompt_logprob_positions.tolist() == expected.prompt_logprob_positions.tolist()
    assert output.prompt_logprobs == expected.prompt_logprobs
    after = worker.execute(make_plan({0: 1, 1: 1, 2: 1, 3: 1}, epoch=2, step_id=2))
    assert after.token_ids.tolist() == expected_next.token_ids.tolist()


def test_allocations_that_fail_only_make_steps_smaller(tmp_path: Path) -> None:
    """In a process with a real memory limit: the same bits; steps are whole again afterwards."""
    checkpoint = make_checkpoint(tmp_path, hidden_size=512, intermediate_size=1024)
    done = subprocess.run(
        [sys.executable, "-m", "support.squeezed_worker", str(checkpoint)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    whole, squeezed, after = json.loads(done.stdout)
    assert len(whole["token_ids"]) == 8 * 4
    assert (whole["errors"], whole["num_cuts"]) == ([], 0)
    assert (squeezed["errors"], squeezed["num_cuts"] > 0) == ([], True)
    assert squeezed | {"num_cuts": 0} == whole
    assert after == whole
