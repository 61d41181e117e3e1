"""The disk tier with whole requests; the fake worker checks that every block has its tokens."""

import struct
from collections import Counter

import pytest

from support.engine_driver import Driver
from support.fake_worker import worker_info
from taco_scheduler.core.disk_prefetch import MAX_WAIT_SECONDS, UNMEASURED_WAIT_SECONDS

LONG = 40


def disk_driver(num_disk_blocks: int = 100, **config: object) -> Driver:
    info = worker_info(num_blocks=14, num_host_blocks=48, num_disk_blocks=num_disk_blocks)
    d = Driver(info, run_ahead=False, **config)
    d.attach()
    d.step()  # the worker reports what it has
    return d


def restart(d: Driver) -> None:
    """Another worker takes the place of the first one, and finds its files."""
    files = d.peers[0].worker.tiers.files
    d.lose_worker(is_fault=False)
    d.attach().worker.tiers.files = files


def ask_long(d: Driver, handle: int, topic: int, tail: int = 0) -> int:
    """As `ask`, with a prompt of ten blocks and an answer of a few steps."""
    prompt = [topic] * (LONG - 4) + [tail] * 4 + [1]
    d.submit(handle, prompt, max_tokens=4, ignore_eos=True)
    d.run()
    return d.got.cached[handle, 0]


def test_a_prompt_and_its_answer_are_on_disk_soon_after_they_were_computed() -> None:
    d = disk_driver()
    ask_long(d, 0, topic=10)
    files = d.peers[0].worker.tiers.files
    assert len(files) == 10 + 1
    assert sum(not block.parent for block, _ in files.values()) == 1, "one prefix"


def test_the_last_steps_blocks_are_on_disk_without_another_request() -> None:
    d = disk_driver()
    d.submit(0, [10] * (LONG + 1), max_tokens=1)
    d.run()
    assert len(d.worker.tiers.files) == 10
    assert len(d.plans[-1].slots) == 0, "a step of copies alone"


def test_a_conversation_continues_after_a_restart() -> None:
    d = disk_driver()
    prompt = [10] * 13
    d.submit(0, prompt, max_tokens=16, ignore_eos=True)
    d.run()
    restart(d)
    d.submit(1, prompt + d.got.tokens[0, 0] + [11], max_tokens=1)
    d.run()
    assert d.got.cached[1, 0] == 28, "every computed token"


def test_a_prefix_with_too_few_uses_is_not_written() -> None:
    d = disk_driver(offload_min_accesses=2)
    ask_long(d, 0, topic=10)
    assert not d.worker.tiers.files
    d.submit(1, [10] * (LONG - 4) + [0] * 4 + [1] + d.got.tokens[0, 0][:-1], max_tokens=1)
    d.run()
    assert len(d.worker.tiers.files) == 11


def test_no_wait_ends_while_no_step_may_be_planned() -> None:
    """A deadline that has passed would make the scheduler's loop spin."""
    d = disk_driver()
    ask_long(d, 0, topic=10)
    restart(d)
    d.submit(1, [12] * 3, max_tokens=1)
    d.run()
    d.submit(2, [11] * 5, max_tokens=16, ignore_eos=True)
    d.submit(3, [10] * (LONG - 4) + [0] * 4 + [1], max_tokens=1)
    assert d.plan()
    steps = d.peers[0].replica.steps
    assert steps.is_full
    waits_until = steps._disk_prefetch.deadline()
    assert waits_until is not None
    d.now = waits_until + 1
    assert steps.disk_deadline() is None
    assert d.deliver()
    assert steps.disk_deadline() is not None, "the next turn plans"


def test_a_server_that_starts_again_is_warm() -> None:
    d = disk_driver()
    ask_long(d, 0, topic=10)
    ask_long(d, 1, topic=11)
    restart(d)
    num_computed = d.worker.num_computed_tokens
    assert ask_long(d, 2, topic=10) > 0
    assert ask_long(d, 3, topic=11) > 0
    assert d.worker.num_computed_tokens - num_computed < 2 * LONG


def test_a_block_is_written_to_disk_once() -> None:
    d = disk_driver()
    for handle in range(4):
        ask_long(d, handle, topic=10, tail=handle % 2)
    assert len(d.worker.tiers.files) == 9 + 2 * 2


def test_the_disk_tier_holds_so_many_blocks_and_no_more() -> None:
    d = disk_driver(num_disk_blocks=12)
    for topic in range(10, 15):
        ask_long(d, topic, topic)
        files = d.worker.tiers.files
        assert len(files) <= 12
        assert all(not b.parent or b.parent in files for b, _ in files.values())
    restart(d)
    assert ask_long(d, 100, topic=14) > 0, "the newest stays"


def test_a_missing_file_is_a_miss() -> None:
    d = disk_driver()
    ask_long(d, 0, topic=10)
    restart(d)
    d.worker.tiers.files.clear()
    assert ask_long(d, 1, topic=10) == 0
    d.run()
    assert len(d.worker.tiers.files) == 11, "it was written again"


def test_salts_share_no_file() -> None:
    d = disk_driver()
    ask_long(d, 0, topic=10)
    restart(d)
    d.submit(1, [10] * LONG, max_tokens=1, cache_salt="other")
    d.run()
    assert d.got.cached[1, 0] == 0


def test_other_sequences_run_while_one_waits_for_the_disk() -> None:
    d = disk_driver()
    ask_long(d, 0, topic=10)
    restart(d)
    d.step()
    d.submit(1, [10] * LONG, max_tokens=1)
    d.submit(2, [12] * 8, max_tokens=1)
    assert d.plan()
    assert d.plans[-1].num_tokens.tolist() == [8]
    d.run()
    assert d.got.cached[1, 0] > 0


# -------------------------------------------------------------------------- flush


def fill_behind_a_full_disk(d: Driver, topics: range) -> None:
    """Computes prompts of which none is written."""
    tiers = d.worker.tiers
    tiers.is_full = True
    for topic in topics:
        ask_long(d, topic, topic)
    tiers.is_full = False
    assert not tiers.files


def topics_of(d: Driver) -> Counter[int]:
    """Of how many blocks each."""
    blocks = [struct.unpack("<4i", block.token_ids) for block, _ in d.worker.tiers.files.values()]
    return Counter(tokens[0] for tokens in blocks if tokens[0] >= 10)


def test_a_draining_worker_writes_its_cache_first() -> None:
    d = disk_driver()
    fill_behind_a_full_disk(d, range(10, 13))
    d.drain(d.peers[0])
    files = d.worker.tiers.files
    d.run()
    assert not d.peers, "it was let go"
    assert len(files) == 3 * 11, "of both tiers"


def test_a_flush_writes_recently_used_prefixes_first() -> None:
    d = disk_driver(num_disk_blocks=15)
    fill_behind_a_full_disk(d, range(10, 13))
    d.engine.flush()
    d.run()
    assert topics_of(d) == {12: 9, 11: 4}


def test_a_flush_skips_prefixes_with_too_few_uses() -> None:
    d = disk_driver(offload_min_accesses=2)
    fill_behind_a_full_disk(d, range(10, 12))
    ask_long(d, 100, topic=11)
    d.worker.tiers.files.clear()
    d.engine.flush()
    d.run()
    assert d.engine.is_flushed
    assert not d.worker.tiers.files


def test_a_flush_ends_though_the_disk_stays_full() -> None:
    d = disk_driver()
    fill_behind_a_full_disk(d, range(10, 13))
    d.worker.tiers.is_full = True
    d.engine.flush()
    d.run()
    assert d.engine.is_flushed


def test_a_draining_worker_with_a_stuck_disk_leaves_in_time() -> None:
    d = disk_driver()
    fill_behind_a_full_disk(d, range(10, 11))
    (peer,) = d.peers
    d.drain(peer, seconds=5.0)
    while d.plan():
        d.deliver()
    d.store()
    assert not peer.replica.is_drained(d.now)
    d.now += 5.0
    assert peer.replica.is_drained(d.now)


def test_a_draining_worker_without_a_disk_tier_leaves_at_once() -> None:
    d = Driver(worker_info(num_blocks=14, num_host_blocks=24), run_ahead=False)
    d.attach()
    ask_long(d, 0, topic=10)
    d.drain(d.peers[0])
    assert d.peers[0].replica.is_drained(d.now)


def test_sequences_that_end_during_a_drain_are_written() -> None:
    d = disk_driver()
    d.submit(0, [10] * 13, max_tokens=20, ignore_eos=True)
    d.plan()
    d.drain(d.peers[0])
    files = d.worker.tiers.files
    d.run()
    assert len(d.got.tokens[0, 0]) == 20
    assert len(files) == 8


# -------------------------------------------------------------------------- waits

FAR = 100  # tokens of a prompt of 25 blocks


def measured_driver(seconds_a_block: float, seconds_a_read: float) -> Driver:
    """A worker that was started anew and has computed and read blocks; topics 10 … 14 of `FAR`
    tokens are on its disk.
    """
    info = worker_info(num_blocks=60, num_host_blocks=240, num_disk_blocks=400)
    d = Driver(info, run_ahead=False)
    d.attach()
    for topic in range(10, 15):
        ask_far(d, topic, topic)
    restart(d)
    d.step()
    d.worker.tiers.seconds_a_read = seconds_a_read
    assert ask_far(d, 100, topic=14) == FAR, "it waits while nothing is known"
    d.submit(101, [20] * FAR, max_tokens=1)
    d.plan()
    d.now += seconds_a_block * (FAR // 4)
    d.run()
    return d


def ask_far(d: Driver, handle: int, topic: int) -> int:
    d.submit(handle, [topic] * FAR + [1], max_tokens=1)
    d.run()
    return d.got.cached[handle, 0]


def test_sequences_do_not_wait_for_a_stuck_disk() -> None:
    d = disk_driver()
    ask_long(d, 0, topic=10)
    restart(d)
    d.submit(1, [10] * LONG, max_tokens=1)
    assert not d.plan(), "it waits to know what is on disk"
    assert d.engine.next_deadline() == pytest.approx(d.now + UNMEASURED_WAIT_SECONDS)
    d.now += UNMEASURED_WAIT_SECONDS / 2
    d.store()
    d.report()
    assert not d.plan(), "it waits for the disk"
    assert d.engine.next_deadline() == pytest.approx(d.now + UNMEASURED_WAIT_SECONDS)
    d.now += UNMEASURED_WAIT_SECONDS
    assert d.plan()
    assert d.plans[-1].num_tokens.sum() == LONG


def test_no_sequence_waits_if_computing_is_faster() -> None:
    d = measured_driver(seconds_a_block=0.01, seconds_a_read=0.02)
    before = d.worker.tiers.num_read
    assert ask_far(d, 0, topic=10) == 0
    assert ask_far(d, 1, topic=11) == 0
    assert d.worker.tiers.num_read == before + 2, "one block each, to see how long it takes"


def test_sequences_wait_again_for_a_disk_that_has_become_fast() -> None:
    d = measured_driver(seconds_a_block=0.015, seconds_a_read=0.02)
    d.worker.tiers.seconds_a_read = 0.0001
    assert [ask_far(d, handle, topic=10 + handle) for handle in range(4)] == [0, 0, FAR, FAR]


def test_no_sequence_waits_longer_than_computing_takes() -> None:
    d = measured_driver(seconds_a_block=0.1, seconds_a_read=0.001)
    d.submit(0, [10] * FAR + [1], max_tokens=1)
    assert not d.plan()
    assert d.engine.next_deadline() == pytest.approx(d.now + 0.1 * 25)
    d.now += 0.1 * 25
    assert d.plan()


def test_no_sequence_waits_longer_than_the_maximum() -> None:
    d = measured_driver(seconds_a_block=100.0, seconds_a_read=0.001)
    d.submit(0, [10] * FAR + [1], max_tokens=1)
    assert not d.plan()
    assert d.engine.next_deadline() == pytest.approx(d.now + MAX_WAIT_SECONDS)


def test_a_wait_ends_when_the_disk_turns_out_to_be_slow() -> None:
    d = measured_driver(seconds_a_block=0.1, seconds_a_read=0.001)
    d.worker.tiers.seconds_a_read = 10.0
    for handle, topic in enumerate((10, 11)):
        d.submit(handle, [topic] * FAR + [1], max_tokens=1)
    assert not d.plan(), "both wait"
    d.store()
    d.report()
    assert d.plan()
    assert d.plans[-1].joined is not None
    assert len(d.plans[-1].slots) == 2, "one has its blocks, and the other one waits no more"


def test_a_disk_with_a_queue_is_left_alone() -> None:
    d = measured_driver(seconds_a_block=0.02, seconds_a_read=0.008)
    for handle in range(4):
        d.submit(handle, [10 + handle] * FAR + [1], max_tokens=1)
    d.run()
    cached = [d.got.cached[handle, 0] for handle in range(4)]
    assert cached == [FAR, FAR, 0, 0], "the disk and the device share the work"


def test_copies_for_the_disk_may_take_their_room_from_further_down_the_same_prefix() -> None:
    info = worker_info(
        num_blocks=18,
        max_num_seqs=5,
        max_draft_tokens=3,
        num_host_blocks=2,
        num_disk_blocks=6,
    )
    d = Driver(info, run_ahead=False, max_num_batched_tokens=18)
    d.attach()
    prefix = [8, 9, 10, 11, 12, 13]
    requests: list[tuple[list[int], dict[str, int]]] = [
        ([3], {"max_tokens": 1, "priority": 0}),
        ([2, 1, 1, 1, 1], {"max_tokens": 6, "n": 3}),
        ([*prefix, 1, 1, 3], {"max_tokens": 4}),
        ([7, *prefix, 3, 3, 2, 1, 1, 3, 3, 2, 2, 1, 2], {"max_tokens": 11, "n": 2}),
        ([3], {"max_tokens": 1, "priority": 0}),
        ([7, *prefix, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3], {"max_tokens": 1}),
    ]
    for handle, (prompt, fields) in enumerate(requests):
        asked = {"seed": 0, "priority": -1, "ignore_eos": True, **fields}
        if fields["max_tokens"] == 11 or handle == 5:
            asked["prompt_logprobs"] = 0
        d.submit(handle, prompt, **asked)
    d.run()
    assert not d.got.errors
    assert d.engine.num_requests == 0
