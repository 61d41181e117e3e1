"""Beams on workers: forks, held beams, preemption, faults and cancels; no block leaks."""

import math
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from support.beam_schedule import expected_answer
from support.engine_driver import Driver, make_request
from support.fake_worker import Row, candidates, generate, worker_info
from taco_proto.logprobs import LogprobColumns
from taco_proto.output_batch import output_logprobs
from taco_proto.requests import FinishReason, Tenant
from taco_proto.steps import WorkerInfo
from taco_scheduler.state.sequence import sequence_seed

PROMPT = [7, 8, 9, 10, 11, 12]
BEAMS: dict[str, Any] = {"use_beam_search": True, "n": 4, "max_tokens": 9, "logprobs": 0}


def make_driver(info: WorkerInfo | None = None, **config: object) -> Driver:
    driver = Driver(info or worker_info(), **config)
    driver.attach()
    return driver


def check_answer(driver: Driver, handle: int, prompt: list[int], **fields: Any) -> None:
    sampling = make_request(handle, prompt, **fields).sampling
    answer = expected_answer(prompt, sampling, driver.info)
    assert len(answer) == sampling.n
    got = driver.got
    assert handle not in got.errors
    for index, (tokens, logprobs, reason) in enumerate(answer):
        assert got.tokens[handle, index] == tokens
        assert got.reasons[handle, index] is reason
        is_stopped = reason is FinishReason.STOP
        assert got.stop_tokens[handle, index] == (tokens[-1] if is_stopped else -1)
        if sampling.logprobs is not None:
            assert got.logprobs[handle, index] == pytest.approx(logprobs)


def check_nothing_is_left(driver: Driver) -> None:
    engine = driver.engine
    assert engine.num_requests == engine.num_running == engine.num_waiting == 0
    for peer in driver.peers:
        batch = peer.replica.worker.batch
        assert not batch.num_beams
        assert not batch.is_held.any()
        assert not peer.replica.worker.preempted
        assert peer.replica.waiting.num_sequences == 0
        peer.replica.worker.blocks.expire(math.inf)
    assert engine.num_free_blocks == engine.num_blocks, "blocks leaked"


@pytest.mark.parametrize("run_ahead", [True, False])
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("early_stopping", [True, False, "never"])
@pytest.mark.parametrize(
    ("n", "best_of", "length_penalty"), [(4, None, 1.0), (2, 5, 0.0), (1, 1, 2.0)]
)
def test_the_answer_is_that_of_the_search(
    run_ahead: bool,
    caching: bool,
    early_stopping: bool | str,
    n: int,
    best_of: int | None,
    length_penalty: float,
) -> None:
    fields = BEAMS | {
        "n": n,
        "best_of": best_of,
        "length_penalty": length_penalty,
        "early_stopping": early_stopping,
        "max_tokens": 24,
    }
    driver = make_driver(run_ahead=run_ahead, enable_prefix_caching=caching)
    driver.submit(1, PROMPT, **fields)
    driver.run()
    check_answer(driver, 1, PROMPT, **fields)
    assert set(driver.got.reasons) == {(1, index) for index in range(n)}
    check_nothing_is_left(driver)


def test_nothing_is_emitted_before_the_search_ends() -> None:
    driver = make_driver()
    driver.submit(1, PROMPT, **BEAMS | {"ignore_eos": True})
    num_steps = 0
    while not driver.got.tokens:
        assert driver.step()
        num_steps += 1
    assert num_steps >= BEAMS["max_tokens"]
    assert len(driver.got.reasons) == 4


def test_forks_compute_only_the_tail_of_their_parents() -> None:
    """A fork shares the full blocks; a beam that takes another token keeps all of its blocks."""
    info = worker_info(block_size=4, num_blocks=200)
    driver = make_driver(info)
    prompt = list(range(1, 42))
    driver.submit(1, prompt, **BEAMS | {"max_tokens": 30, "ignore_eos": True})
    driver.run()
    check_answer(driver, 1, prompt, **BEAMS | {"max_tokens": 30, "ignore_eos": True})
    num_steps = driver.engine.counters.num_steps
    assert num_steps == 30
    # In place one token a beam and step, and at most a block of tokens for a fork.
    assert driver.worker.num_computed_tokens < len(prompt) + 4 * 30 * 3
    joined = sum(plan.joined is not None for plan in driver.plans)
    assert joined > 1, "no beam has forked: the test shows nothing"


def test_beams_take_turns_in_too_few_slots() -> None:
    driver = make_driver(worker_info(max_num_seqs=3))
    for handle in range(3):
        driver.submit(handle, [*PROMPT, handle], **BEAMS | {"n": 4})
    driver.run()
    for handle in range(3):
        check_answer(driver, handle, [*PROMPT, handle], **BEAMS | {"n": 4})
    check_nothing_is_left(driver)


def test_two_searches_share_blocks_that_are_enough_for_one() -> None:
    fields = BEAMS | {"max_tokens": 20, "ignore_eos": True}
    driver = make_driver(worker_info(num_blocks=9))
    driver.submit(1, PROMPT, **fields)
    driver.submit(2, [5, *PROMPT], **fields)
    driver.run()
    check_answer(driver, 1, PROMPT, **fields)
    check_answer(driver, 2, [5, *PROMPT], **fields)
    assert driver.engine.counters.num_steps > 30, "all beams had blocks: the test shows nothing"
    check_nothing_is_left(driver)


def test_a_search_survives_failed_steps_and_lost_workers() -> None:
    fields = BEAMS | {"max_tokens": 16, "ignore_eos": True}
    driver = make_driver()
    driver.submit(1, PROMPT, **fields)
    for number in range(14):
        driver.step()
        if number == 4:
            driver.worker.fails = lambda plan: True
            driver.plan()
            driver.worker.fails = lambda plan: False
        if number == 9:
            driver.attach()
            driver.lose_worker()
    driver.run()
    check_answer(driver, 1, PROMPT, **fields)
    assert driver.engine.counters.num_failed_steps == 1
    check_nothing_is_left(driver)


def test_a_search_that_is_submitted_again_starts_again() -> None:
    """A gateway that lost its scheduler has got no token yet."""
    fields = BEAMS | {"ignore_eos": True}
    driver = make_driver()
    driver.submit(1, PROMPT, **fields)
    driver.step()
    driver.submit(2, PROMPT, quota_charged=True, finished_indexes=(1,), **fields)
    driver.submit(3, PROMPT, emitted=[4], **BEAMS | {"n": 1})
    driver.run()
    answer = expected_answer(PROMPT, make_request(2, PROMPT, **fields).sampling, driver.info)
    for index in (0, 2, 3):
        assert driver.got.tokens[2, index] == answer[index][0]
    assert (2, 1) not in driver.got.reasons
    assert driver.got.errors[3][0] == 400
    check_nothing_is_left(driver)


@pytest.mark.parametrize("num_steps", [0, 1, 4])
def test_a_cancelled_search_frees_everything(num_steps: int) -> None:
    driver = make_driver()
    driver.submit(1, PROMPT, **BEAMS)
    driver.submit(2, PROMPT, **BEAMS)
    for _ in range(num_steps):
        driver.step()
    driver.plan()
    driver.engine.cancel(driver.client, 1)
    driver.engine.cancel(driver.client, 2, 0)
    driver.engine.cancel(driver.client, 2, 3)
    driver.engine.cancel(driver.client, 2, 3)
    driver.run()
    aborted = FinishReason.ABORTED
    assert [driver.got.reasons[1, index] for index in range(4)] == [aborted] * 4
    assert driver.got.reasons[2, 0] is driver.got.reasons[2, 3] is aborted
    answer = expected_answer(PROMPT, make_request(2, PROMPT, **BEAMS).sampling, driver.info)
    for index in (1, 2):
        assert driver.got.tokens[2, index] == answer[index][0]
    check_nothing_is_left(driver)


def test_a_search_ends_when_all_its_texts_are_cancelled() -> None:
    driver = make_driver()
    driver.submit(1, PROMPT, **BEAMS | {"max_tokens": 100, "ignore_eos": True})
    driver.step()
    for index in range(4):
        driver.engine.cancel(driver.client, 1, index)
    assert driver.engine.num_requests == 0
    driver.run()
    check_nothing_is_left(driver)


def test_logprobs_hold_the_token_and_the_most_likely_ones() -> None:
    fields = BEAMS | {"logprobs": 2, "n": 1, "best_of": 4}
    driver = make_driver()
    output_buffer = driver.client
    driver.submit(1, PROMPT, **fields)
    batch = None
    while batch is None or not batch.handles:
        driver.plan()
        driver.deliver()
        batch = output_buffer.take()
    (answer,) = expected_answer(PROMPT, make_request(1, PROMPT, **fields).sampling, driver.info)

    rows = output_logprobs(batch)
    assert rows is not None
    for i, (ids, values, ranks) in enumerate(rows.rows()):
        options = candidates(PROMPT + answer[0][:i], 64, 64)
        assert ids == [answer[0][i], options[0][1], options[1][1]]
        assert values == pytest.approx([answer[1][i], options[0][0], options[1][0]])
        assert ranks == [1 + [token for _, token in options].index(answer[0][i]), 1, 2]


def test_a_worker_without_candidates_fails_the_request_alone() -> None:
    driver = make_driver()

    def sample(row: Row, logprobs: LogprobColumns) -> int:
        logprobs.append_row([], [], [])
        row.tokens.append(1)
        return 1

    driver.worker._sample_beam = sample  # type: ignore[method-assign]
    driver.submit(1, PROMPT, **BEAMS)
    driver.submit(2, PROMPT, max_tokens=5)
    driver.run()
    assert driver.got.errors[1][0] == 500
    assert (2, 0) in driver.got.reasons
    check_nothing_is_left(driver)


def test_each_beam_is_charged_to_its_tenant() -> None:
    driver = make_driver()
    tenant = Tenant(name="a", max_tokens_per_minute=1000)
    driver.submit(1, PROMPT, tenant=tenant, **BEAMS | {"n": 1, "best_of": 6, "ignore_eos": True})
    driver.run()
    driver.submit(2, PROMPT, tenant=tenant, max_tokens=1)
    (share,) = {request.share for request in driver.engine._requests}
    # One beam in the first step, six in each of the others.
    assert share.num_outputs == 1 + 6 * (BEAMS["max_tokens"] - 1)


prompts = st.builds(
    lambda prefix, tail: PROMPT[:prefix] + tail,
    st.integers(0, 6),
    st.lists(st.integers(1, 5), min_size=1, max_size=9),
)
workloads = st.lists(
    st.tuples(
        prompts,
        st.fixed_dictionaries(
            {
                "use_beam_search": st.sampled_from([True, True, False]),
                "n": st.integers(1, 3),
                "max_tokens": st.integers(1, 14),
                "ignore_eos": st.booleans(),
                "stop_token_ids": st.sampled_from([(), (), (5, 6)]),
                "priority": st.integers(-1, 1),
                "logprobs": st.sampled_from([None, 0]),
                "presence_penalty": st.sampled_from([0.0, 0.0, 0.5]),
                "prompt_logprobs": st.sampled_from([None, None, 0]),
            }
        ),
        st.fixed_dictionaries(
            {
                "extra": st.integers(0, 3),
                "length_penalty": st.sampled_from([1.0, 0.0, 2.0]),
                "early_stopping": st.sampled_from([False, True, "never"]),
            }
        ),
    ),
    min_size=1,
    max_size=5,
)
moves = st.sampled_from(
    ["plan"] * 6 + ["deliver"] * 6 + ["submit"] * 3 + ["cancel", "fail", "lose", "drain", "join"]
)


@pytest.mark.slow
@settings(max_examples=300)
@given(
    workload=workloads,
    script=st.lists(st.tuples(moves, st.integers(0, 7)), max_size=60),
    num_blocks=st.integers(8, 24),
    num_slots=st.integers(1, 6),
    budget=st.integers(6, 40),
    run_ahead=st.booleans(),
    caching=st.booleans(),
    max_drafts=st.sampled_from([0, 0, 3]),
    needs_history=st.booleans(),
    num_host_blocks=st.sampled_from([0, 20]),
    swaps_preempted=st.booleans(),
)
def test_answers_do_not_depend_on_the_schedule(
    workload: list[tuple[list[int], dict[str, Any], dict[str, Any]]],
    script: list[tuple[str, int]],
    num_blocks: int,
    num_slots: int,
    budget: int,
    run_ahead: bool,
    caching: bool,
    max_drafts: int,
    needs_history: bool,
    num_host_blocks: int,
    swaps_preempted: bool,
) -> None:
    """Beams beside sampled sequences; tiny pools, faults and cancels at any moment."""
    info = worker_info(
        num_blocks=num_blocks,
        max_num_seqs=num_slots,
        max_draft_tokens=max_drafts,
        needs_history=needs_history,
        num_host_blocks=num_host_blocks,
    )
    driver = make_driver(
        info,
        max_num_batched_tokens=budget,
        run_ahead=run_ahead,
        enable_prefix_caching=caching,
        swaps_preempted=swaps_preempted,
    )
    requests: list[tuple[list[int], dict[str, Any]]] = []
    for prompt, common, own in workload:
        extra = own.pop("extra")
        beams = {**own, "best_of": common["n"] + extra} if common["use_beam_search"] else {}
        requests.append((prompt, common | beams))
    waiting = list(enumerate(requests))
    cancelled: set[int] = set()
    num_faults = 0
    for name, number in script:
        driver.release_leavers()
        peer = driver.peers[number % len(driver.peers)] if driver.peers else None
        match name:
            case "plan" if peer:
                driver.plan(peer)
            case "deliver" if peer:
                driver.deliver(peer)
            case "submit" if waiting:
                handle, (prompt, fields) = waiting.pop(0)
                driver.submit(handle, prompt, **fields)
            case "cancel":
                driver.engine.cancel(driver.client, number)
                cancelled.add(number)
            case "fail" if peer and not num_faults:
                num_faults += 1
                peer.worker.fails = lambda plan: True
                driver.plan(peer)
                peer.worker.fails = lambda plan: False
            case "lose" if peer and not num_faults:
                num_faults += 1
                driver.lose_worker(peer)
            case "drain" if peer:
                driver.drain(peer)
            case "join" if len(driver.peers) < 3:
                driver.attach()
        driver.collect()
    for handle, (prompt, fields) in waiting:
        driver.submit(handle, prompt, **fields)
    if all(peer.replica.is_draining for peer in driver.peers):
        driver.attach()
    driver.run()
    for handle, (prompt, fields) in enumerate(requests):
        if handle in cancelled:
            continue
        if fields["use_beam_search"]:
            check_answer(driver, handle, prompt, **fields)
        else:
            check_sampled(driver, handle, prompt, fields)
    event(f"preempted: {driver.engine.counters.num_preemptions > 0}")
    check_nothing_is_left(driver)


def check_sampled(driver: Driver, handle: int, prompt: list[int], fields: dict[str, Any]) -> None:
    sampling = make_request(handle, prompt, **fields).sampling
    for index in range(fields["n"]):
        seed = sequence_seed(sampling.seed or 0, index)
        expected = generate(prompt, sampling, driver.info, seed)
        assert driver.got.tokens[handle, index] == expected
