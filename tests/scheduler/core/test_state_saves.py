"""Where a recurrent worker saves states, and which requests continue from them."""

import pytest

from support.engine_driver import Driver, make_request
from support.fake_worker import generate, worker_info
from support.recurrent_worker import RecurrentDriver, check_snapshots, recurrent_info
from taco_proto.requests import PrefixPin
from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import StepPlan
from taco_scheduler.admission.validation import InvalidWorkerError
from taco_scheduler.core import state_saves
from taco_scheduler.kv.recurrent_block_manager import RecurrentBlockManager
from taco_scheduler.state.sequence import Sequence

BLOCK_SIZE = 4
SHARED = [5, 6, 7, 8] * 4  # 16 tokens


def new_driver(num_workers: int = 1, *, run_ahead: bool = False, **info: object) -> RecurrentDriver:
    d = RecurrentDriver(recurrent_info(**info), run_ahead=run_ahead)
    for _ in range(num_workers):
        d.attach()
    return d


def run(d: RecurrentDriver, handle: int, prompt: list[int], **fields: object) -> int:
    """Runs one request alone; returns its cached tokens."""
    d.submit(handle, prompt, **({"max_tokens": 2, "ignore_eos": True} | fields))
    d.run()
    for peer in d.peers:
        blocks = peer.replica.worker.blocks
        assert isinstance(blocks, RecurrentBlockManager)
        check_snapshots(blocks)
    return d.got.cached[handle, 0]


def saves(plans: list[StepPlan]) -> list[list[int]]:
    """The positions that each plan saves."""
    return [plan.saved_positions.tolist() for plan in plans if plan.saved_positions.size]


def num_prompt_plans(d: RecurrentDriver) -> list[int]:
    return [int(plan.num_tokens.max()) for plan in d.plans if plan.num_tokens.max() > 1]


def test_the_same_prompt_continues_from_its_last_whole_block() -> None:
    d = new_driver()
    assert run(d, 1, SHARED) == 0
    assert saves(d.plans) == [[12]]
    assert run(d, 2, SHARED) == 12
    assert run(d, 3, [*SHARED, 9, 9]) == 12


def test_the_third_request_with_a_common_prefix_continues_from_its_end() -> None:
    d = new_driver()
    assert run(d, 1, SHARED + [1] * 9) == 0
    d.plans.clear()
    assert run(d, 2, SHARED + [2] * 9) == 0
    assert saves(d.plans) == [[16], [24]]
    assert num_prompt_plans(d) == [16, 9], "a chunk saves one state"
    assert run(d, 3, SHARED + [3] * 9) == 16


def test_the_next_turn_continues_from_what_was_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_saves, "DECODE_INTERVAL", 8)
    d = new_driver()
    run(d, 1, SHARED, max_tokens=20)
    assert saves(d.plans) == [[12], [24], [32]]
    blocks = d.peers[0].replica.worker.blocks
    assert blocks.num_used_snapshots == 2, "of those of a decode, the newest is kept"
    answer = d.got.tokens[1, 0]
    assert run(d, 2, [*SHARED, *answer, 1, 2, 3]) == 32


def test_requests_that_arrive_together_compute_a_common_prefix_twice() -> None:
    d = new_driver()
    for handle in range(6):
        d.submit(handle, SHARED + [handle + 1] * 5, max_tokens=2, ignore_eos=True)
    d.run()
    assert [d.got.cached[handle, 0] for handle in range(6)] == [0, 0, 16, 16, 16, 16]


def test_a_request_that_comes_during_a_prefill_waits_for_its_end() -> None:
    d = RecurrentDriver(recurrent_info(), run_ahead=False, max_num_batched_tokens=8)
    d.attach()
    prompts = [SHARED + [handle] * 5 for handle in (1, 2, 3)]
    d.submit(1, prompts[0], max_tokens=2)
    d.step()
    d.submit(2, prompts[1], max_tokens=2)
    while not d.plans[-1].saved_positions.size:
        d.step()
    d.step()
    d.submit(3, prompts[2], max_tokens=2)
    d.run()
    assert [d.got.cached[handle, 0] for handle in (1, 2, 3)] == [0, 0, 16]


def test_siblings_continue_from_the_prompt() -> None:
    d = new_driver(run_ahead=True)
    d.submit(1, [*SHARED, 1], n=3, max_tokens=4, ignore_eos=True)
    d.run()
    assert [d.got.cached[1, index] for index in range(3)] == [0, 16, 16]


def test_a_pin_saves_the_state_at_its_end() -> None:
    d = new_driver()
    pin = PrefixPin(10, 60.0)
    run(d, 1, SHARED + [1] * 3, pins=(pin,))
    assert saves(d.plans) == [[8], [16]]
    assert run(d, 2, SHARED[:8] + [2] * 5) == 8


def test_a_preempted_sequence_continues_from_a_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_saves, "DECODE_INTERVAL", 8)
    d = new_driver(run_ahead=True)
    d.submit(1, SHARED, max_tokens=30, ignore_eos=True)
    for _ in range(12):
        d.step()
    replica = d.peers[0].replica
    replica.steps._policy._preemption.preempt(replica.worker.batch.owner(0))
    d.run()
    joined = [plan.joined for plan in d.plans if plan.joined is not None]
    assert [each.num_computed_tokens.tolist() for each in joined] == [[0], [24]]
    sampling = SamplingParams(max_tokens=30, ignore_eos=True)
    assert d.got.tokens[1, 0] == generate(SHARED, sampling, d.info, 1)


def test_running_sequences_leave_half_of_the_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_saves, "DECODE_INTERVAL", 4)
    d = new_driver(num_state_snapshots=4)
    for handle in range(1, 7):
        d.submit(handle, [handle] * 6, max_tokens=20, ignore_eos=True)
    blocks = d.peers[0].replica.worker.blocks
    assert isinstance(blocks, RecurrentBlockManager)
    most = 0
    while d.step():
        most = max(most, blocks.snapshots.num_pending)
        check_snapshots(blocks)
    assert most == 2


def test_the_state_of_a_failed_step_is_not_used() -> None:
    """The step fails that saves a state behind blocks that an earlier request has computed."""
    d = new_driver(run_ahead=True)
    run(d, 1, SHARED + [1] * 5)
    d.submit(2, SHARED + [2] * 5, max_tokens=2, ignore_eos=True)
    d.worker.fails = lambda plan: 16 in plan.saved_positions.tolist()
    assert d.plan()
    d.worker.fails = lambda plan: False
    d.submit(3, SHARED + [3] * 5, max_tokens=2, ignore_eos=True)
    d.run()
    assert d.got.cached[2, 0] == 0
    assert len(d.got.tokens[3, 0]) == 2


def test_a_failed_sequence_leaves_no_state() -> None:
    d = new_driver()
    run(d, 1, SHARED + [1] * 5)
    d.worker.fails_row = lambda row: row.tokens[-1] == 2
    d.submit(2, SHARED + [2] * 5, max_tokens=2)
    d.run()
    assert d.got.errors[2][0] == 500
    assert run(d, 3, SHARED + [3] * 5) == 0, "the states may be wrong"
    assert run(d, 4, SHARED + [4] * 5) == 16


@pytest.mark.parametrize("run_ahead", [True, False])
def test_beams_have_the_states_of_their_tokens(run_ahead: bool) -> None:
    d = new_driver(run_ahead=run_ahead)
    plain = Driver()
    plain.attach()
    for each in (d, plain):
        each.submit(1, [*SHARED, 1], n=3, use_beam_search=True, max_tokens=12)
        each.run()
    assert d.got.tokens == plain.got.tokens
    assert d.engine.num_free_blocks == d.info.num_blocks


def test_the_router_counts_what_a_snapshot_lets_a_replica_skip() -> None:
    d = new_driver(num_workers=2)
    first, second = (peer.replica for peer in d.peers)
    d.submit(1, SHARED + [1] * 9, max_tokens=2)
    d.run()
    sequence = new_sequence(d, SHARED + [2] * 9)
    assert first.num_missing_tokens(sequence) == 25, "the blocks are there, the state is not"
    same = new_sequence(d, SHARED + [1] * 9)
    assert {first.num_missing_tokens(same), second.num_missing_tokens(same)} == {1, 25}


def test_the_router_counts_on_the_ends_of_waiting_prompts() -> None:
    d = new_driver(num_workers=2)
    d.submit(1, SHARED, max_tokens=2)
    replica = next(p.replica for p in d.peers if p.replica.waiting.num_sequences)
    assert replica.num_missing_tokens(new_sequence(d, [*SHARED, 1])) == 1
    assert replica.num_missing_tokens(new_sequence(d, SHARED[:12] + [1] * 5)) == 17


def new_sequence(d: RecurrentDriver, prompt: list[int]) -> Sequence:
    """A sequence that no replica has."""
    return d.engine._requests.new(d.client, make_request(99, prompt), d.now).sequences[0]


def test_without_snapshots_there_is_no_prefix_cache() -> None:
    d = new_driver(num_state_snapshots=0)
    for handle in (1, 2):
        d.submit(handle, SHARED, max_tokens=2)
        d.run()
        assert d.got.cached[handle, 0] == 0
    assert d.engine.counters.prefix_cache_queries == 0


def test_used_snapshots_are_exported() -> None:
    d = new_driver()
    run(d, 1, SHARED)
    line = next(line for line in d.metrics() if line.startswith("taco:worker_state_snapshots{"))
    assert line.endswith(" 1.0")


@pytest.mark.parametrize(
    "name", ["max_draft_tokens", "max_forced_tokens", "num_host_blocks", "num_disk_blocks"]
)
def test_a_recurrent_worker_has_neither_drafts_nor_tiers(name: str) -> None:
    d = RecurrentDriver()
    with pytest.raises(InvalidWorkerError, match=f"{name} must be 0 for a recurrent model, got 1"):
        d.attach(recurrent_info(**{name: 1}))


def test_other_workers_get_no_states() -> None:
    d = Driver(worker_info(drafts_itself=False))
    d.attach()
    for handle in (1, 2):
        d.submit(handle, SHARED, max_tokens=70, ignore_eos=True)
        d.run()
    assert d.got.cached[2, 0] == 12
    for plan in d.plans:
        assert not plan.saved_slots.size
        assert plan.joined is None or not plan.joined.state_snapshots.size
