"""Failed steps, lost workers, and poison requests."""

import numpy as np
import pytest

from support.engine_driver import Driver
from support.fake_worker import generate
from taco_proto.logprobs import LogprobColumns
from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import StepOutput, StepPlan
from taco_scheduler.state.in_flight import InvalidOutputError, StaleOutputError

POISON = 60


def poisoned(plan: StepPlan) -> bool:
    """A step fails if a joining sequence holds the poisonous token."""
    return plan.joined is not None and POISON in plan.joined.token_ids


@pytest.mark.parametrize("kills", [False, True], ids=["fails its steps", "kills its workers"])
def test_one_poisonous_request_is_quarantined_and_the_others_live(
    kills: bool, caplog: pytest.LogCaptureFixture
) -> None:
    d = Driver(max_num_batched_tokens=64)
    d.attach()
    d.worker.fails = poisoned
    prompts = {handle: [handle + 1] * 6 for handle in range(5)}
    prompts[5] = [POISON, 1, 2]
    prompts |= {handle: [handle + 1] * 6 for handle in range(6, 9)}
    for handle, prompt in prompts.items():
        d.submit(handle, prompt, max_tokens=12)
    while d.step():
        if kills and any(output.error for output in d.outputs):
            d.lose_worker()
            d.attach()
            d.worker.fails = poisoned
    assert {handle: code for handle, (code, _) in d.got.errors.items()} == {5: 500}
    assert "poison request request-5 fails" in caplog.text
    for handle, prompt in prompts.items():
        if handle != 5:
            expected = generate(prompt, SamplingParams(max_tokens=12), d.info, 1)
            assert d.got.tokens[handle, 0] == expected


def test_one_failed_step_fails_no_request() -> None:
    d = Driver(max_num_batched_tokens=64)
    d.attach()
    for handle in range(6):
        d.submit(handle, [handle + 1] * 6, max_tokens=20, ignore_eos=True)
    for _ in range(3):
        d.step()
    d.worker.fails = lambda plan: True
    d.plan()
    d.worker.fails = lambda plan: False
    epoch = d.plans[-1].epoch
    d.run()
    assert d.plans[-1].epoch == epoch + 1
    assert not d.got.errors
    assert {len(tokens) for tokens in d.got.tokens.values()} == {20}


def test_blocks_of_a_failed_step_are_not_cached() -> None:
    d = Driver(run_ahead=True, max_num_batched_tokens=64)
    d.attach()
    d.worker.fails = lambda plan: True
    d.submit(1, [9] * 13)
    d.plan()
    d.submit(2, [9] * 13)
    d.plan()
    assert d.plans[1].joined is not None
    assert d.plans[1].joined.num_computed_tokens.tolist() == [12], "it matched what was sent"
    d.worker.fails = lambda plan: False
    d.deliver()
    d.plan()
    assert d.plans[2].joined is not None
    assert d.plans[2].joined.num_computed_tokens.tolist() == [0]
    d.run()
    assert set(d.got.reasons) == {(1, 0), (2, 0)}


def test_a_living_worker_keeps_its_confirmed_blocks() -> None:
    d = Driver(run_ahead=False, max_num_batched_tokens=64)
    d.attach()
    d.submit(1, [9] * 13, max_tokens=8, ignore_eos=True)
    d.step()
    d.worker.fails = lambda plan: True
    d.step()
    d.worker.fails = lambda plan: False
    d.step()
    joined = d.plans[-1].joined
    assert joined is not None
    assert joined.num_computed_tokens.tolist() == [12]
    d.run()
    assert len(d.got.tokens[1, 0]) == 8


def test_a_worker_that_leaves_by_itself_makes_no_request_suspected() -> None:
    d = Driver(max_num_batched_tokens=64)
    d.attach()
    for handle in range(4):
        d.submit(handle, [handle + 1] * 6, max_tokens=20, ignore_eos=True)
    for _ in range(3):
        d.plan()
        d.lose_worker(is_fault=False)
        d.attach()
    d.run()
    assert not d.got.errors
    assert {len(tokens) for tokens in d.got.tokens.values()} == {20}


def test_late_outputs_of_an_older_epoch_are_dropped() -> None:
    d = Driver()
    d.attach()
    d.submit(1, [4, 5, 6], max_tokens=6, ignore_eos=True)
    d.plan()
    late = d.outputs[0]
    d.lose_worker()
    again = d.attach()
    with pytest.raises(StaleOutputError):
        again.replica.steps.commit(late, d.now)
    d.run()
    assert d.got.tokens[1, 0] == generate(
        [4, 5, 6], SamplingParams(max_tokens=6, ignore_eos=True), d.info, 1
    )


@pytest.mark.parametrize(
    "change",
    [
        {"step_id": 2},
        {"epoch": 2},
        {"slots": np.array([1], np.int32)},
        {"slots": np.array([0, 0], np.int32), "token_ids": np.array([1, 1], np.int32)},
        {"token_ids": np.array([64], np.int32)},
        {"token_ids": np.array([-1], np.int32)},
        {"prompt_logprob_slots": np.array([3], np.int32)},
        {"prompt_logprobs": LogprobColumns()},
        {"logprobs": LogprobColumns([1], [64], [0.0], [1])},
        {"logprobs": LogprobColumns([1], [-1], [0.0], [1])},
    ],
)
def test_an_impossible_output_changes_nothing(change: dict) -> None:
    d = Driver()
    d.attach()
    d.submit(1, [4, 5, 6], max_tokens=6, ignore_eos=True)
    d.plan()
    good = {"epoch": 1, "step_id": 1, "slots": np.array([0], np.int32)}
    good["token_ids"] = np.array([1], np.int32)
    with pytest.raises(InvalidOutputError):
        d.peers[0].replica.steps.commit(StepOutput(**{**good, **change}), d.now)
    d.run()
    assert len(d.got.tokens[1, 0]) == 6


def test_failures_with_progress_in_between_are_forgiven() -> None:
    d = Driver(run_ahead=False, max_num_batched_tokens=64)
    d.attach()
    d.worker.fails = lambda plan: plan.step_id % 7 == 0
    for handle in range(3):
        d.submit(handle, [handle + 1] * 6, max_tokens=20, ignore_eos=True)
    d.run()
    assert d.engine.counters.num_failed_steps > 3
    assert not d.got.errors
    assert {len(tokens) for tokens in d.got.tokens.values()} == {20}
