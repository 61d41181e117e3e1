"""A recurrent model under random schedules: no sequence ever continues from a wrong state.

The worker knows which tokens each of its states and snapshots holds, and checks every plan. The
tokens that clients get must be those that any schedule gives. After every move, each snapshot is
free, in the tree, or pending.
"""

import math
from unittest.mock import patch

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from support.engine_driver import Peer, make_request
from support.fake_worker import ROW_ERROR, generate
from support.recurrent_worker import (
    RecurrentDriver,
    RecurrentWorker,
    check_snapshots,
    recurrent_info,
)
from taco_proto.requests import FinishReason, PrefixPin
from taco_scheduler.core import state_saves
from taco_scheduler.kv.recurrent_block_manager import RecurrentBlockManager
from taco_scheduler.state.sequence import sequence_seed

pytestmark = pytest.mark.slow

BLOCK_SIZE = 2
POISON = 63  # workers fail a row that has computed this token, if they are told to

# Few tokens, so that prompts have common prefixes of many lengths.
prompts = st.builds(
    lambda prefix, tail: [7, 8, 9, 7, 8, 9, 7, 8, 9, 7, 8, 9, 7, 8][:prefix] + tail,
    st.integers(0, 14),
    st.lists(st.sampled_from([1, 2, 1, 2, POISON]), min_size=1, max_size=8),
)
requests = st.builds(
    lambda prompt, pin, fields: (
        {"prompt": prompt, "pins": (PrefixPin(min(pin, len(prompt)), 9.0),) if pin else ()} | fields
    ),
    prompts,
    st.sampled_from([0, 0, 4, 9]),
    st.fixed_dictionaries(
        {
            "max_tokens": st.integers(1, 24),
            "seed": st.integers(0, 2),
            "n": st.sampled_from([1, 1, 1, 2, 3]),
            "priority": st.integers(-1, 1),
            "cache_salt": st.sampled_from(["", "", "", "salt"]),
            "ignore_eos": st.booleans(),
            "prompt_logprobs": st.sampled_from([None, None, None, 0]),
            "use_beam_search": st.sampled_from([False, False, False, True]),
        }
    ),
)
which = st.integers(0, 2)
moves = st.one_of(
    st.tuples(st.just("plan"), which),
    st.tuples(st.just("plan"), which),
    st.tuples(st.just("deliver"), which),
    st.tuples(st.just("deliver"), which),
    st.just(("submit", 0)),
    st.just(("again", 0)),
    st.just(("wait", 0)),
    st.tuples(st.just("cancel"), st.integers(0, 7)),
)
faults = st.tuples(st.sampled_from(["fail", "lose", "leave", "drain", "join", "join"]), which)


def fields_of(fields: dict) -> dict:
    """What a beam search has no use for is left out."""
    if not fields["use_beam_search"]:
        return {name: value for name, value in fields.items() if name != "use_beam_search"}
    return fields | {"prompt_logprobs": None, "n": max(2, fields["n"])}


def check_caches(driver: RecurrentDriver) -> None:
    for peer in driver.peers:
        blocks = peer.replica.worker.blocks
        if isinstance(blocks, RecurrentBlockManager):
            check_snapshots(blocks)


@settings(max_examples=300)
@given(
    workload=st.lists(requests.map(fields_of), min_size=1, max_size=8),
    script=st.lists(st.one_of(moves, moves, moves, moves, faults), max_size=80),
    num_blocks=st.integers(14, 60),
    num_snapshots=st.sampled_from([0, 1, 2, 3, 5, 40]),
    budget=st.integers(3, 40),
    slots=st.integers(1, 6),
    num_workers=st.sampled_from([1, 1, 2]),
    run_ahead=st.booleans(),
    caching=st.sampled_from([True, True, True, False]),
    interval=st.sampled_from([2, 4, 64]),
    fails_rows=st.booleans(),
    max_cached=st.sampled_from([None, None, 6]),
)
def test_no_sequence_continues_from_a_wrong_state(
    workload: list[dict],
    script: list[tuple[str, int]],
    num_blocks: int,
    num_snapshots: int,
    budget: int,
    slots: int,
    num_workers: int,
    run_ahead: bool,
    caching: bool,
    interval: int,
    fails_rows: bool,
    max_cached: int | None,
) -> None:
    info = recurrent_info(
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_num_seqs=slots,
        num_state_snapshots=num_snapshots,
    )
    driver = RecurrentDriver(
        info,
        max_num_batched_tokens=budget,
        run_ahead=run_ahead,
        enable_prefix_caching=caching,
        max_cached_device_blocks=max_cached,
    )
    workers: list[RecurrentWorker] = []

    def join() -> None:
        worker = driver.attach().worker
        assert isinstance(worker, RecurrentWorker)
        if fails_rows:
            worker.fails_row = lambda row: POISON in row.tokens[: row.num_computed]
        workers.append(worker)

    waiting = list(enumerate(workload))
    cancelled: set[int] = set()

    def play(name: str, number: int) -> None:
        driver.release_leavers()
        match name:
            case "wait":
                driver.now += 5.0
            case "submit" if waiting:
                handle, fields = waiting.pop(0)
                driver.submit(handle, **fields)
            case "again":  # the next turn of a conversation, under a new handle
                handle = 100 + len(driver.plans) % 7
                done = [key for key in driver.got.reasons if key[0] < len(workload)]
                if done and not any(key[0] == handle for key in driver.got.tokens):
                    fields = workload[done[-1][0]]
                    answer = driver.got.tokens.get(done[-1], [])
                    if handle not in driver.got.errors and handle not in again:
                        again.add(handle)
                        driver.submit(handle, [*fields["prompt"], *answer, 3], max_tokens=2)
            case "cancel":
                driver.engine.cancel(driver.client, number)
                cancelled.add(number)
            case "join" if len(driver.peers) < 3:
                join()
            case _ if driver.peers:
                play_with(driver.peers[number % len(driver.peers)], name)
        driver.collect()
        check_caches(driver)

    def play_with(peer: Peer, name: str) -> None:
        match name:
            case "plan":
                driver.plan(peer)
            case "deliver":
                driver.deliver(peer)
            case "fail":
                peer.worker.fails = lambda plan: True
                driver.plan(peer)
                peer.worker.fails = lambda plan: False
            case "lose" | "leave":
                driver.lose_worker(peer, is_fault=name == "lose")
            case "drain":
                driver.drain(peer)

    again: set[int] = set()
    with patch.object(state_saves, "DECODE_INTERVAL", interval):
        for _ in range(num_workers):
            join()
        for name, number in script:
            play(name, number)
        for handle, fields in waiting:
            driver.submit(handle, **fields)
        if all(peer.replica.is_draining for peer in driver.peers):
            join()
        driver.run()
    check_caches(driver)

    for handle, fields in enumerate(workload):
        check_request(driver, handle, fields, was_cancelled=handle in cancelled)
    num_continued = sum(worker.num_continued for worker in workers)
    event(f"continued from snapshots: {min(num_continued, 3)}")
    event(f"preempted: {driver.engine.counters.num_preemptions > 0}")
    assert num_continued == 0 or (caching and num_snapshots)
    assert driver.engine.num_requests == 0
    for peer in driver.peers:
        peer.replica.worker.blocks.expire(math.inf)
        if caching and num_snapshots:
            assert peer.replica.worker.blocks._tree.snapshots.num_pending == 0
    assert driver.engine.num_free_blocks == driver.engine.num_blocks, "blocks leaked"


def check_request(
    driver: RecurrentDriver, handle: int, fields: dict, *, was_cancelled: bool
) -> None:
    got = driver.got
    if handle in got.errors:
        assert got.errors[handle][0] in (400, 500)
        assert got.errors[handle][1] != ROW_ERROR or got.errors[handle][0] == 500
        return
    for index in range(fields["n"]):
        tokens, reason = got.tokens.get((handle, index), []), got.reasons.get((handle, index))
        if reason is FinishReason.ABORTED:
            assert was_cancelled
        elif not fields.get("use_beam_search"):
            sampling = make_request(handle, **fields).sampling
            seed = sequence_seed(fields["seed"], index)
            assert tokens == generate(fields["prompt"], sampling, driver.info, seed)
        else:
            assert tokens
