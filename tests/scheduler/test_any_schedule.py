"""Whatever happens on the way, a sequence's tokens depend on its prompt, seed and parameters.

Random workloads run through random schedules: tiny pools that force preemption, chunked prefill,
shared prefixes, cancels at any moment, outputs that come late, failing steps, lost workers, and
clients that come back and submit again what they had; drafts that are accepted or
not, and a draft worker that is late, lost or wrong. The fake worker checks every plan and every
read of the KV memory on the way.
"""

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from support.engine_driver import Driver, make_request
from support.fake_worker import generate, token_logprob, worker_info
from taco_proto.requests import FinishReason
from taco_scheduler import draft_pace
from taco_scheduler.sequence import sequence_seed

BLOCK_SIZE = 4

prompts = st.builds(
    lambda prefix, tail: [7, 8, 9, 10, 11, 12, 13, 14, 15, 16][:prefix] + tail,
    st.integers(0, 10),
    st.lists(st.integers(1, 3), min_size=1, max_size=12),
)
requests = st.fixed_dictionaries(
    {
        "prompt": prompts,
        "max_tokens": st.integers(1, 24),
        "seed": st.integers(0, 3),
        "n": st.sampled_from([1, 1, 1, 2, 3]),
        "priority": st.integers(-1, 1),
        "cache_salt": st.sampled_from(["", "", "salt"]),
        "ignore_eos": st.booleans(),
        "stop_token_ids": st.sampled_from([(), (), (5, 6)]),
        "logprobs": st.sampled_from([None, None, 0]),
        "prompt_logprobs": st.sampled_from([None, None, None, 0]),
    }
)
# What to do next, while there is something to do.
moves = st.one_of(
    st.just(("plan",)),
    st.just(("plan",)),
    st.just(("deliver",)),
    st.just(("deliver",)),
    st.just(("submit",)),
    st.just(("reply",)),
    st.just(("wait",)),
    st.tuples(st.just("cancel"), st.integers(0, 7), st.sampled_from([None, None, 0, 1])),
)
faults = st.sampled_from(
    [("fail",), ("lose",), ("leave",), ("reconnect",), ("lose drafter",), ("new drafter",)]
)


@settings(max_examples=300)
@given(
    workload=st.lists(requests, min_size=1, max_size=8),
    script=st.lists(st.one_of(moves, moves, moves, moves, faults), max_size=60),
    num_blocks=st.integers(7, 24),
    budget=st.integers(3, 40),
    slots=st.integers(1, 6),
    run_ahead=st.booleans(),
    caching=st.booleans(),
    max_drafts=st.sampled_from([0, 0, 1, 3, 7]),
    drafts_itself=st.booleans(),
    has_drafter=st.booleans(),
)
def test_tokens_do_not_depend_on_the_schedule(
    workload: list[dict],
    script: list[tuple],
    num_blocks: int,
    budget: int,
    slots: int,
    run_ahead: bool,
    caching: bool,
    max_drafts: int,
    drafts_itself: bool,
    has_drafter: bool,
) -> None:
    info = worker_info(
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_num_seqs=slots,
        max_draft_tokens=max_drafts,
        drafts_itself=drafts_itself,
    )
    driver = Driver(
        info,
        max_num_batched_tokens=budget,
        run_ahead=run_ahead,
        enable_prefix_caching=caching,
    )
    driver.attach()
    if has_drafter:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(draft_pace, "_PLAIN_STEPS", 0)  # else it is asked too late for a test
            driver.attach_drafter()
    waiting = list(enumerate(workload))
    cancelled: set[tuple[int, int | None]] = set()
    dropped: set[int] = set()

    def play(move: tuple) -> None:
        match move:
            case ("plan",):
                driver.plan()
            case ("deliver",):
                driver.deliver()
            case ("reply",):
                driver.reply()
            case ("wait",):
                driver.now += 5.0
            case ("lose drafter",):
                driver.lose_drafter()
            case ("new drafter",) if driver.drafter is None:
                driver.attach_drafter()
            case ("submit",) if waiting:
                handle, fields = waiting.pop(0)
                driver.submit(handle, **fields)
            case ("cancel", handle, index):
                driver.engine.cancel(driver.client, handle, index)
                cancelled.add((handle, index))
            case ("fail",):
                driver.worker.fails = lambda plan: True
                driver.plan()
                driver.worker.fails = lambda plan: False
            case ("lose",) | ("leave",):
                driver.lose_worker(is_fault=move[0] == "lose")
                driver.attach()
            case ("reconnect",):
                submitted = dict(enumerate(workload[: len(workload) - len(waiting)]))
                dropped.update(reconnect(driver, submitted))
        driver.collect()

    for move in script:
        play(move)
    for handle, fields in waiting:
        driver.submit(handle, **fields)
    driver.run()

    got = driver.got
    for handle, fields in enumerate(workload):
        if handle in got.errors:
            code, _ = got.errors[handle]
            assert code == 500, "only quarantine can fail these requests"
            event("quarantined")
        for index in () if handle in dropped else range(fields["n"]):
            check_sequence(driver, handle, index, fields, cancelled)
    event(f"drafts accepted: {driver.engine.counters.speculation.accepted_tokens > 0}")
    event(f"preempted: {driver.engine.counters.num_preemptions > 0}")
    assert driver.engine.num_requests == 0
    assert driver.engine.num_running == 0
    assert driver.engine.num_free_blocks == num_blocks, "blocks leaked"


def reconnect(driver: Driver, submitted: dict[int, dict]) -> set[int]:
    """The client's stream breaks: on a new one it asks for the rest of what it has seen in part.

    Returns what cannot be resumed: requests of several sequences. Prompt log probabilities would
    come twice, which is the client's to sort out.
    """
    got = driver.received.pop(driver.client)
    driver.engine.disconnect(driver.client)
    driver.client = driver.connect()
    driver.received[driver.client] = got
    dropped = set()
    for handle, fields in submitted.items():
        if fields["n"] > 1 or fields["prompt_logprobs"] is not None:
            dropped.add(handle)
        elif (handle, 0) not in got.reasons and handle not in got.errors:
            driver.submit(handle, emitted=got.tokens.get((handle, 0)), **fields)
    return dropped


def check_sequence(
    driver: Driver, handle: int, index: int, fields: dict, cancelled: set[tuple[int, int | None]]
) -> None:
    got = driver.got
    seed = sequence_seed(fields["seed"], index)
    sampling = make_request(handle, **fields).sampling
    expected = generate(fields["prompt"], sampling, driver.info, seed)
    tokens = got.tokens.get((handle, index), [])
    reason = got.reasons.get((handle, index))
    assert tokens == expected[: len(tokens)], "a token was lost, repeated or changed"
    if handle in got.errors:
        assert reason is None or tokens == expected or reason is FinishReason.ABORTED
    elif reason is FinishReason.ABORTED:
        assert {(handle, None), (handle, index)} & cancelled
    else:
        assert tokens == expected
        stopped = driver.info.eos_token_ids if not fields["ignore_eos"] else ()
        ends = expected[-1] in (*stopped, *fields["stop_token_ids"])
        assert reason is (FinishReason.STOP if ends else FinishReason.LENGTH)
        assert got.stop_tokens[handle, index] == (expected[-1] if ends else -1)
    if fields["logprobs"] is not None:
        assert got.logprobs.get((handle, index), []) == logprobs_of(fields["prompt"], tokens)
    if fields["prompt_logprobs"] is not None and reason in (FinishReason.STOP, FinishReason.LENGTH):
        rows = got.prompt_logprobs.get(handle, [])
        assert rows == prompt_logprobs_of(fields["prompt"])


def logprobs_of(prompt: list[int], tokens: list[int]) -> list[float]:
    whole = prompt + tokens
    return [token_logprob(whole[:i], whole[i]) for i in range(len(prompt), len(whole))]


def prompt_logprobs_of(prompt: list[int]) -> list[tuple[int, float]]:
    return [(i, token_logprob(prompt[:i], prompt[i])) for i in range(1, len(prompt))]
