"""Workers without a license: which requests they continue, and where the others go."""

from dataclasses import replace

import pytest

from support.engine_driver import Driver
from support.fake_worker import generate, worker_info
from taco_proto.licenses import NEEDS_NO_LICENSE, LicenseState, WorkerLicense
from taco_proto.requests import Tenant
from taco_proto.sampling_params import SamplingParams
from taco_scheduler.admission.rejections import RejectionReason

VALID = NEEDS_NO_LICENSE
ASKED = WorkerLicense(LicenseState.ASKED, "the license server has not answered yet")
MISSING = WorkerLicense(LicenseState.MISSING, "expired")


def make_driver(*licenses: WorkerLicense, **config: object) -> Driver:
    """A worker for each, in their order."""
    d = Driver(worker_info(), **config)
    for license_ in licenses:
        d.attach(replace(d.info, license=license_))
    return d


def submit(d: Driver, handle: int, **fields: object) -> None:
    d.submit(handle, [handle + 1] * 9, max_tokens=20, ignore_eos=True, **fields)


def tell(d: Driver, peer: int, license_: WorkerLicense) -> None:
    d.engine.note_license(d.peers[peer].replica, license_)
    d.collect()


def assert_answered(d: Driver, *handles: int) -> None:
    sampling = SamplingParams(max_tokens=20, ignore_eos=True)
    for handle in handles:
        assert d.got.tokens[handle, 0] == generate([handle + 1] * 9, sampling, d.info, 1)
    assert d.engine.num_free_blocks == d.engine.num_blocks


def assert_refused(d: Driver, *handles: int) -> None:
    d.collect()
    assert {handle: code for handle, (code, _) in d.got.errors.items()} == dict.fromkeys(
        handles, 503
    )
    assert d.engine.counters.rejections[RejectionReason.LICENSE] == len(handles)
    assert all("license" in message for _, message in d.got.errors.values())


def test_new_requests_go_to_workers_with_a_license() -> None:
    d = make_driver(MISSING, VALID, ASKED)
    for handle in range(6):
        submit(d, handle)
    assert [peer.replica.waiting.num_sequences for peer in d.peers] == [0, 6, 0]
    d.run()
    assert_answered(d, *range(6))


def test_without_any_license_new_requests_are_refused_at_once() -> None:
    d = make_driver(MISSING, MISSING)
    submit(d, 1)
    assert_refused(d, 1)
    tell(d, 1, VALID)
    submit(d, 2)
    d.run()
    assert_answered(d, 2)


def test_a_lapsed_license_lets_running_requests_finish_and_rejects_waiting_ones() -> None:
    d = make_driver(VALID, max_num_seqs=2)
    for handle in range(5):
        submit(d, handle)
    d.step()
    tell(d, 0, MISSING)
    assert_refused(d, 2, 3, 4)
    assert d.engine.num_running == 2
    d.run()
    assert_answered(d, 0, 1)


def test_waiting_requests_move_to_a_licensed_worker() -> None:
    d = make_driver(VALID, VALID, max_num_seqs=2)
    for handle in range(8):
        submit(d, handle)
    d.step()
    tell(d, 0, MISSING)
    assert d.peers[0].replica.waiting.num_sequences == 0
    assert d.peers[1].replica.waiting.num_sequences == 4
    d.run()
    assert not d.got.errors
    assert_answered(d, *range(8))


def test_a_preempted_sequence_is_no_new_one() -> None:
    d = make_driver(VALID, max_num_seqs=8)
    # Their 116 tokens need more than the 64 blocks of 4.
    for handle in range(4):
        d.submit(handle, [handle + 1] * 9, max_tokens=107, ignore_eos=True)
    d.step()
    tell(d, 0, MISSING)
    d.run()
    assert d.engine.counters.num_preemptions > 0
    assert not d.got.errors
    sampling = SamplingParams(max_tokens=107, ignore_eos=True)
    for handle in range(4):
        assert d.got.tokens[handle, 0] == generate([handle + 1] * 9, sampling, d.info, 1)


def test_siblings_of_a_running_sequence_need_no_license() -> None:
    d = make_driver(VALID, max_num_seqs=1)
    submit(d, 1, n=3)
    d.step()
    tell(d, 0, MISSING)
    d.run()
    assert not d.got.errors
    assert len(d.got.reasons) == 3


def test_a_failed_step_begins_anew_without_a_license() -> None:
    d = make_driver(VALID)
    submit(d, 1)
    d.step()
    tell(d, 0, MISSING)
    d.worker.fails = lambda plan: plan.joined is None
    d.step()
    d.worker.fails = lambda plan: False
    d.run()
    assert d.engine.counters.num_failed_steps > 0
    assert_answered(d, 1)


@pytest.mark.parametrize("others", [MISSING, ASKED])
def test_a_request_of_a_lost_worker_continues_without_a_license(
    others: WorkerLicense,
) -> None:
    d = make_driver(VALID, others)
    submit(d, 1)
    for _ in range(4):
        d.step()
    d.lose_worker(d.peers[0])
    d.run()
    assert_answered(d, 1)


def test_a_request_that_has_begun_prefers_a_licensed_worker() -> None:
    d = make_driver(VALID, MISSING, VALID)
    submit(d, 1)
    d.step()
    d.lose_worker(d.peers[0])
    assert [peer.replica.waiting.num_sequences for peer in d.peers] == [0, 1]
    d.run()
    assert_answered(d, 1)


def test_a_resumed_request_continues_without_a_license() -> None:
    d = make_driver(MISSING)
    whole = generate([4, 5, 6], SamplingParams(max_tokens=20, ignore_eos=True), d.info, 1)
    d.submit(1, [4, 5, 6], emitted=whole[:5], max_tokens=20, ignore_eos=True)
    submit(d, 2, quota_charged=True)  # it had not begun
    assert_refused(d, 2)
    d.run()
    assert d.got.tokens[1, 0] == whole[5:]


def test_requests_wait_while_a_license_is_requested() -> None:
    d = make_driver(ASKED)
    submit(d, 1)
    submit(d, 2)
    assert not d.step()
    assert not d.got.errors
    tell(d, 0, VALID)
    d.run()
    assert_answered(d, 1, 2)


def test_waiting_requests_are_rejected_when_no_license_will_come() -> None:
    d = make_driver(ASKED)
    submit(d, 1)
    tell(d, 0, MISSING)
    assert_refused(d, 1)


def test_waiting_requests_are_rejected_by_an_unlicensed_worker() -> None:
    d = make_driver()
    submit(d, 1)
    d.attach(replace(d.info, license=MISSING))
    assert_refused(d, 1)


def test_an_idle_worker_without_a_license_takes_nothing_over() -> None:
    d = make_driver(VALID, max_num_seqs=1)
    for handle in range(6):
        submit(d, handle)
    d.attach(replace(d.info, license=MISSING))
    d.run()
    assert d.peers[1].worker.num_sampled_tokens == 0
    assert_answered(d, *range(6))


def test_a_newly_licensed_worker_takes_waiting_requests() -> None:
    d = make_driver(VALID, MISSING, max_num_seqs=1)
    for handle in range(6):
        submit(d, handle)
    d.step()
    tell(d, 1, VALID)
    d.run()
    assert d.peers[1].worker.num_sampled_tokens > 0
    assert_answered(d, *range(6))


def test_a_rejection_charges_no_rate_limit() -> None:
    d = make_driver(MISSING)
    tenant = Tenant(name="a", max_requests_per_minute=1)
    submit(d, 1, tenant=tenant)
    assert_refused(d, 1)
    tell(d, 0, VALID)
    submit(d, 2, tenant=tenant)
    d.run()
    assert_answered(d, 2)
