"""A worker whose model has recurrent states: snapshots, plans that it rejects, and limits."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers

from support.checkpoints import make_checkpoint
from support.models import kernels_for
from support.plans import Join, ints, make_plan
from support.recurrent_models import RECURRENT
from taco_proto.config import ModelConfig, SpeculationConfig, WorkerConfig
from taco_proto.errors import ConfigurationError
from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import StepPlan
from taco_worker.worker import Worker

SAMPLING = SamplingParams(temperature=0.0, seed=0, logprobs=0)
PROMPT = list(range(40, 75))
NUM_DECODES = 5


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("recurrent"), **RECURRENT)


@cache
def worker_of(checkpoint: Path, serves: str, **changes: object) -> Worker:
    model = ModelConfig(model=str(checkpoint), dtype="float32")
    config = WorkerConfig(model=model, num_blocks=32, max_num_seqs=4, num_threads=2)
    return Worker(
        replace(config, **changes),  # type: ignore[arg-type]
        lambda count: kernels_for(serves, count or 1),
    )


@pytest.fixture(params=["kernels", "torch"])
def worker(request: pytest.FixtureRequest, checkpoint: Path) -> Worker:
    worker = worker_of(checkpoint, request.param)
    worker.reset()
    return worker


def saved(plan: StepPlan, slot: int, position: int, snapshot: int) -> StepPlan:
    return replace(
        plan,
        saved_slots=ints([slot]),
        saved_positions=ints([position]),
        saved_snapshots=ints([snapshot]),
    )


def tokens(worker: Worker, slot: int, plans: list[StepPlan]) -> list[tuple[int, float]]:
    """The tokens of a slot with their log probabilities."""
    found = []
    for plan in plans:
        output = worker.execute(plan)
        assert output.error == ""
        if slot in output.slots:
            row = output.slots.tolist().index(slot)
            assert output.logprobs is not None
            found.append((int(output.token_ids[row]), list(output.logprobs.rows())[row][1][0]))
    return found


def begin(slot: int, blocks: list[int], num_tokens: int = len(PROMPT)) -> StepPlan:
    join = Join(slot, PROMPT, blocks, sampling=SAMPLING)
    return make_plan({slot: num_tokens}, joined=[join])


def continuing(slot: int, blocks: list[int], num_computed: int, snapshot: int) -> StepPlan:
    join = Join(slot, PROMPT, blocks, num_computed_tokens=num_computed, sampling=SAMPLING)
    plan = make_plan({slot: len(PROMPT) - num_computed}, joined=[join])
    assert plan.joined is not None
    return replace(plan, joined=replace(plan.joined, state_snapshots=ints([snapshot])))


def decodes(slot: int) -> list[StepPlan]:
    return [make_plan({slot: 1}) for _ in range(NUM_DECODES)]


def test_it_says_that_it_is_recurrent(worker: Worker) -> None:
    assert worker.info.is_recurrent
    assert worker.info.num_state_snapshots == 4 * worker.info.max_num_seqs
    assert worker.info.max_forced_tokens == 0
    assert worker.memory_bytes()["states"] > 0


def test_tokens_are_those_of_transformers(worker: Worker, checkpoint: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    ids = list(PROMPT)
    with torch.no_grad():
        for _ in range(1 + NUM_DECODES):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    found = tokens(worker, 0, [begin(0, [0, 1, 2]), *decodes(0)])
    assert [token for token, _ in found] == ids[len(PROMPT) :]


def test_a_sequence_continues_from_a_snapshot(worker: Worker, checkpoint: Path) -> None:
    """Of a prompt, whose blocks another sequence has computed, in the middle of its step."""
    first = saved(begin(0, [0, 1, 2]), 0, 32, 3)
    whole = tokens(worker, 0, [first, *decodes(0)])
    again = tokens(worker, 1, [continuing(1, [0, 1, 5], 32, 3), *decodes(1)])
    # In a third slot, after the snapshot was read, beside the others.
    both = make_plan({0: 1, 1: 1})
    assert worker.execute(both).error == ""
    third = tokens(worker, 2, [continuing(2, [0, 1, 6], 32, 3), *decodes(2)])
    assert [token for token, _ in again] == [token for token, _ in whole]
    assert third == again
    if worker is worker_of(checkpoint, "kernels"):
        assert again == whole  # in every bit


def test_a_snapshot_of_a_decode_step(worker: Worker) -> None:
    plans = [begin(0, [0, 1, 2]), *decodes(0)]
    whole = tokens(worker, 0, plans)
    worker.reset()
    plans[2] = saved(plans[2], 0, len(PROMPT) + 2, 7)
    assert tokens(worker, 0, plans) == whole
    generated = [token for token, _ in whole]
    join = Join(
        3,
        [*PROMPT, *generated[:3]],
        [0, 1, 2],
        num_computed_tokens=len(PROMPT) + 2,
        num_prompt_tokens=len(PROMPT),
        sampling=SAMPLING,
    )
    plan = make_plan({3: 1}, joined=[join])
    assert plan.joined is not None
    plan = replace(plan, joined=replace(plan.joined, state_snapshots=ints([7])))
    found = tokens(worker, 3, [plan, make_plan({3: 1})])
    assert [token for token, _ in found] == generated[3:5]


def test_a_new_sequence_in_a_slot_begins_without_a_state(worker: Worker) -> None:
    whole = tokens(worker, 0, [begin(0, [0, 1, 2]), *decodes(0)])
    left = replace(begin(0, [3, 4, 5]), left_slots=ints([0]))
    assert tokens(worker, 0, [left, *decodes(0)]) == whole


def test_chunks_give_the_same_bits(checkpoint: Path) -> None:
    worker = worker_of(checkpoint, "kernels")
    worker.reset()
    whole = tokens(worker, 0, [begin(0, [0, 1, 2]), *decodes(0)])
    worker.reset()
    chunks = [begin(0, [0, 1, 2], 1), make_plan({0: 2}), make_plan({0: len(PROMPT) - 3})]
    assert tokens(worker, 0, [*chunks, *decodes(0)]) == whole


def test_computed_tokens_without_a_snapshot_fail_the_step(worker: Worker) -> None:
    join = Join(1, PROMPT, [0, 1, 2], num_computed_tokens=16)
    output = worker.execute(make_plan({1: 3}, joined=[join]))
    assert "continues without a snapshot" in output.error


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculation": SpeculationConfig()}, "speculation is not supported"),
        ({"host_kv_bytes": 2**20}, "KV tiers"),
        ({"kv_disk_path": "somewhere"}, "KV tiers"),
    ],
)
def test_what_states_exclude_is_rejected(
    checkpoint: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"recurrent states: .*{message}"):
        worker_of.__wrapped__(checkpoint, "kernels", **changes)
