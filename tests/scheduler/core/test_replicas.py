"""Several workers: attach, drain, stall and crash."""

import pytest

from support.engine_driver import Driver
from support.fake_worker import FakeWorker, generate, worker_info
from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import StepPlan
from taco_scheduler.admission.validation import OtherModelError
from taco_scheduler.faults import worker_loss
from taco_scheduler.faults.worker_loss import STALL_FACTOR

POISON = 60


def make_driver(num_workers: int = 2, **config: object) -> Driver:
    d = Driver(worker_info(), **config)
    for _ in range(num_workers):
        d.attach()
    return d


def crowd(d: Driver, count: int = 8, first: int = 0) -> None:
    for handle in range(first, first + count):
        d.submit(handle, [handle + 1] * 9, max_tokens=20, ignore_eos=True)


def assert_all_answered(d: Driver, count: int = 8) -> None:
    sampling = SamplingParams(max_tokens=20, ignore_eos=True)
    assert not d.got.errors
    for handle in range(count):
        expected = generate([handle + 1] * 9, sampling, d.info, 1)
        assert d.got.tokens[handle, 0] == expected
    assert d.engine.num_free_blocks == d.engine.num_blocks


@pytest.mark.parametrize("is_fault", [True, False])
def test_sequences_of_a_lost_worker_continue_elsewhere(is_fault: bool) -> None:
    d = make_driver()
    crowd(d)
    for _ in range(4):
        d.step()
    emitted = sum(map(len, d.got.tokens.values()))
    assert emitted > 8
    d.lose_worker(is_fault=is_fault)
    assert d.engine.counters.num_lost_workers == is_fault
    d.run()
    assert_all_answered(d)


def test_a_passed_deadline_does_not_end_a_request_that_another_worker_continues() -> None:
    d = make_driver()
    d.submit(1, [1] * 9, deadline=d.now + 1, max_tokens=20, ignore_eos=True)
    d.step()
    d.now += 5
    d.lose_worker(d.peers[0])
    d.run()
    assert len(d.got.tokens[1, 0]) == 20


def test_all_workers_roll_and_nothing_is_lost() -> None:
    d = make_driver(3, max_num_batched_tokens=32)
    crowd(d, 24)
    for _ in range(3):
        d.step()
        d.drain(d.peers[0], seconds=0.03)
        d.attach()
        while any(peer.replica.is_draining for peer in d.peers):
            d.step()
    assert len(d.peers) == 3
    d.run()
    assert_all_answered(d, 24)


def test_a_draining_worker_gets_no_new_requests_and_finishes() -> None:
    d = make_driver()
    crowd(d, 2)
    d.step()
    leaver = d.peers[0]
    d.drain(leaver, seconds=100)
    assert not leaver.replica.is_drained(d.now)
    for handle in range(2, 8):
        d.submit(handle, [handle + 1] * 9, max_tokens=20, ignore_eos=True)
    assert leaver.replica.num_running == 1
    d.run()
    assert d.peers == [peer for peer in d.peers if peer is not leaver]
    assert leaver.worker.num_sampled_tokens in (20, 21), "what it had, it finished"
    assert_all_answered(d)


def test_a_draining_worker_leaves_at_its_deadline() -> None:
    d = make_driver()
    crowd(d)
    d.step()
    d.drain(d.peers[0], seconds=0.05)
    d.run()
    assert len(d.peers) == 1
    assert_all_answered(d)


def test_the_queue_of_the_only_worker_waits_for_the_next_one() -> None:
    d = make_driver(1)
    crowd(d, 2)
    d.drain(d.peers[0])
    assert d.peers[0].replica.is_drained(d.now)
    d.run()
    assert not d.peers
    d.attach()
    d.run()
    assert_all_answered(d, 2)


# ------------------------------------------------------------------ quarantine


def poisoned(plan: StepPlan) -> bool:
    return plan.joined is not None and POISON in plan.joined.token_ids


def run_with_deaths(d: Driver) -> int:
    """Every failing step kills its worker, and another one comes; returns how many died."""
    num_worker_crashes = 0
    for peer in d.peers:
        peer.worker.fails = poisoned
    while d.step():
        for peer in [peer for peer in d.peers if any(output.error for output in peer.outputs)]:
            d.lose_worker(peer)
            num_worker_crashes += 1
            d.attach().worker.fails = poisoned
    return num_worker_crashes


def test_a_poisonous_request_kills_two_workers_and_no_more() -> None:
    d = make_driver(3, max_num_batched_tokens=64)
    crowd(d)
    d.submit(99, [POISON, 1, 2], max_tokens=20)
    assert run_with_deaths(d) == 2
    assert d.got.errors.pop(99)[0] == 500
    assert_all_answered(d)


def lose_without_begin(d: Driver) -> None:
    """A worker is sent a step and is gone before it has begun it."""
    (peer,) = d.peers
    plan = d.engine.plan(peer.replica, d.now)
    assert plan is not None
    assert plan.is_announced == bool(d.engine._requests.poison.suspected)
    d.lose_worker(peer)
    d.attach()


def test_a_second_crash_before_the_step_began_does_not_fail_the_requests() -> None:
    d = make_driver(1)
    crowd(d)
    d.step()
    lose_without_begin(d)
    lose_without_begin(d)
    d.run()
    assert_all_answered(d)


def test_steps_are_announced_only_while_requests_are_suspected() -> None:
    """A request may be so bad that a worker cannot even read it."""
    d = make_driver(1)
    d.submit(1, [1] * 9, max_tokens=50)
    for _ in range(4):
        assert not d.got.errors
        lose_without_begin(d)
        d.collect()
    assert d.got.errors[1][0] == 500


def test_only_steps_with_a_suspect_are_announced() -> None:
    d = make_driver(1)
    crowd(d)
    while d.step():
        pass
    assert not any(plan.is_announced for plan in d.plans)


def test_suspected_requests_run_one_at_a_time_on_all_workers() -> None:
    d = make_driver(3, max_num_batched_tokens=64)
    for handle in (98, 99):
        d.submit(handle, [POISON, handle - 90, 2], max_tokens=20)
    crowd(d)
    seen: list[int] = []
    suspected_requests = d.engine._requests.poison.suspected
    for peer in d.peers:
        peer.worker.fails = poisoned
    while d.step():
        seen.append(sum(request.is_on_worker for request in suspected_requests))
        for peer in [peer for peer in d.peers if any(output.error for output in peer.outputs)]:
            d.lose_worker(peer)
            d.attach().worker.fails = poisoned
    assert max(seen) == 1
    assert d.got.errors.keys() == {98, 99}
    d.got.errors.clear()
    assert_all_answered(d)


def test_a_request_at_every_death_is_given_up_even_if_it_gets_tokens_in_between() -> None:
    d = make_driver(1)
    d.submit(1, [1] * 9, max_tokens=50, ignore_eos=True)
    num_worker_crashes = 0
    while not d.got.errors:
        for _ in range(3):
            d.step()
        d.plan()
        d.lose_worker()
        num_worker_crashes += 1
        d.attach()
        d.collect()
    assert d.got.errors[1][0] == 500
    assert num_worker_crashes == 4


# ---------------------------------------------------------------------- stalls


def test_a_step_far_longer_than_any_before_is_a_stall() -> None:
    d = make_driver(step_timeout=20.0)
    crowd(d)
    d.step()
    hung = d.peers[0]
    d.plan(hung)
    assert d.engine.stalled(d.now) == []
    limit = d.engine.next_deadline()
    assert limit is not None
    assert 19 < limit - d.now <= 20
    d.deliver(d.peers[1])
    while d.deliver(d.peers[1]):
        pass
    d.now = limit
    assert d.engine.stalled(d.now) == [hung.replica]
    d.lose_worker(hung)
    d.run()
    assert_all_answered(d)


def test_slow_steps_are_no_stall_where_steps_are_slow() -> None:
    d = make_driver(1, step_timeout=1.0, run_ahead=False)
    crowd(d, 1)
    d.plan()
    d.now += 0.9
    d.deliver()
    d.plan()
    d.now += 0.9 * STALL_FACTOR - 0.1
    assert d.engine.stalled(d.now) == []
    d.now += 0.2
    assert d.engine.stalled(d.now) == [d.peers[0].replica]


def test_a_long_first_step_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_loss, "STALL_HALF_LIFE", 1)
    d = make_driver(1, step_timeout=1.0, run_ahead=False)
    crowd(d, 1)
    d.plan()
    d.now += 60
    d.deliver()
    for _ in range(10):
        d.plan()
        d.now += 0.01
        d.deliver()
    d.plan()
    d.now += 0.9
    assert d.engine.stalled(d.now) == []
    d.now += 0.2
    assert d.engine.stalled(d.now) == [d.peers[0].replica]


# ------------------------------------------------------------------- identities


@pytest.mark.parametrize(
    "change", [{"model": "other"}, {"vocab_size": 65}, {"eos_token_ids": ()}, {"block_size": 8}]
)
def test_only_workers_of_one_model_work_together(change: dict) -> None:
    d = make_driver(1)
    with pytest.raises(OtherModelError, match=next(iter(change))):
        d.attach(worker_info(**change))
    d.lose_worker()
    d.attach(worker_info(**change))


def test_workers_of_one_name_are_told_apart() -> None:
    d = make_driver(3)
    assert [peer.replica.name for peer in d.peers] == ["fake", "fake-2", "fake-3"]
    d.lose_worker(d.peers[1])
    assert d.attach().replica.name == "fake-2"


def test_epochs_rise_over_all_workers() -> None:
    d = make_driver()
    crowd(d)
    d.step()
    for peer in d.peers:
        peer.worker.fails = lambda plan: True
        d.plan(peer)
        peer.worker.fails = FakeWorker.fails
        while d.deliver(peer):
            pass
    d.run()
    epochs = [peer.worker.epoch for peer in d.peers]
    assert epochs == [3, 4]
    d.attach()
    crowd(d, first=8)
    d.run()
    assert d.peers[2].worker.epoch == 5
    assert len({plan.step_id for plan in d.plans}) == len(d.plans)
