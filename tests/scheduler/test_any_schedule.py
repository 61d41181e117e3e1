"""Whatever happens on the way, a sequence's tokens depend on its prompt, seed and parameters.

Random workloads run through random schedules: tiny pools that force preemption, chunked prefill,
shared prefixes, cancels at any moment, outputs that come late, failing steps, workers that join,
leave, drain, stall, are lost or lose their licenses, prompts that are pinned or delayed, and
clients that come back and submit again what they had; drafts that are accepted or not, and draft
workers that are late, lost or wrong. The fake worker checks every plan and every read of the KV
memory on the way.
"""

import math

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from support.engine_driver import Driver, Peer, make_request, pack
from support.fake_worker import ROW_ERROR, generate, token_logprob, worker_info
from taco_proto.grammars import Grammar
from taco_proto.licenses import NEEDS_NO_LICENSE, LicenseState, WorkerLicense
from taco_proto.requests import FinishReason, PrefixPin
from taco_proto.steps import WorkerInfo
from taco_scheduler.speculation import draft_length_controller
from taco_scheduler.state.sequence import sequence_seed

pytestmark = pytest.mark.slow

BLOCK_SIZE = 4
POISON = 63  # workers fail a row that has computed this token, if they are told to
LARGE_POOL = 12  # blocks that hold the longest prompt and answer

prompts = st.builds(
    lambda prefix, tail: [7, 8, 9, 10, 11, 12, 13, 14, 15, 16][:prefix] + tail,
    st.integers(0, 10),
    st.lists(st.sampled_from([1, 2, 3, 1, 2, 3, POISON]), min_size=1, max_size=12),
)
prompts_and_pins = st.tuples(prompts, st.sampled_from([0.0, 0.0, 5.0, 500.0])).map(
    lambda drawn: {
        "prompt": drawn[0],
        "pins": (PrefixPin(len(drawn[0]), drawn[1]),) if drawn[1] else (),
    }
)
parameters = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(1, 24),
        "seed": st.integers(0, 3),
        "n": st.sampled_from([1, 1, 1, 2, 3]),
        "priority": st.integers(-1, 1),
        "cache_salt": st.sampled_from(["", "", "salt"]),
        "prompt_cache_key": st.sampled_from(["", "", "a", "b"]),
        "ignore_eos": st.booleans(),
        "stop_token_ids": st.sampled_from([(), (), (5, 6)]),
        "logprobs": st.sampled_from([None, None, 0]),
        "presence_penalty": st.sampled_from([0.0, 0.0, 0.5]),
        "prompt_logprobs": st.sampled_from([None, None, None, 0]),
        "grammar": st.sampled_from([None, None, Grammar.of('start: "a"'), Grammar.of("start: B")]),
    }
)
# An end token ends a text with a grammar in any case.
parameters = parameters.map(
    lambda drawn: drawn | {"ignore_eos": drawn["ignore_eos"] and drawn["grammar"] is None}
)
requests = st.builds(lambda own, others: own | others, prompts_and_pins, parameters)
LICENSES = {
    "license": NEEDS_NO_LICENSE,
    "license asked": WorkerLicense(LicenseState.ASKED),
    "no license": WorkerLicense(LicenseState.MISSING),
}
which = st.integers(0, 2)  # of the workers that are there
# What to do next, while there is something to do.
moves = st.one_of(
    st.tuples(st.just("plan"), which),
    st.tuples(st.just("plan"), which),
    st.tuples(st.just("deliver"), which),
    st.tuples(st.just("deliver"), which),
    st.just(("submit",)),
    st.tuples(st.just("reply"), which),
    st.tuples(st.sampled_from(["store", "report"]), which),
    st.just(("wait",)),
    st.tuples(st.just("cancel"), st.integers(0, 7), st.sampled_from([None, None, 0, 1])),
)
faults = st.tuples(
    st.sampled_from(
        [
            *("fail", "lose", "leave", "drain", "reconnect", "join", "join", "join"),
            *("late output", "lose drafter", "new drafter", "lose files"),
            *("no license", "license asked", "license"),
        ]
    ),
    which,
)


class Players(Driver):
    """A driver whose workers come and go.

    Attributes:
        lost: workers that were given up, and may answer late.
    """

    def __init__(
        self, infos: list[WorkerInfo], has_drafters: bool, fails_rows: bool, **config: object
    ) -> None:
        super().__init__(infos[0], **config)
        self.lost: list[Peer] = []
        self._infos = infos
        self._has_drafters = has_drafters
        self._fails_rows = fails_rows
        self._num_joined = 0
        self.join()

    def join(self) -> None:
        peer = self.attach(self._infos[self._num_joined % len(self._infos)])
        if self._fails_rows:
            peer.worker.fails_row = lambda row: POISON in row.tokens[: row.num_computed]
        self._num_joined += 1
        if self._has_drafters:
            self.give_drafter(peer)

    def give_drafter(self, peer: Peer) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                draft_length_controller, "_PLAIN_STEPS", 0
            )  # else it is asked too late for a test
            self.attach_drafter(peer=peer)

    def lose_worker(self, peer: Peer | None = None, *, is_fault: bool = True) -> None:
        self.lost.append(peer or self.peers[0])
        super().lose_worker(peer, is_fault=is_fault)

    def plan(self, peer: Peer | None = None) -> bool:
        if self.peers:
            self.compile_grammars(peer)
        return super().plan(peer)

    def fail(self, peer: Peer) -> None:
        peer.worker.fails = lambda plan: True
        self.plan(peer)
        peer.worker.fails = lambda plan: False

    def answer_late(self) -> None:
        for peer in self.lost:
            self.deliver(peer)

    def finish(self) -> None:
        """With at least one worker that stays, and licenses for all."""
        for peer in self.peers:
            self.engine.note_license(peer.replica, NEEDS_NO_LICENSE)
        if all(peer.replica.is_draining for peer in self.peers):
            self.join()
        self.run()
        self.answer_late()
        self.collect()


@settings(max_examples=300)
@given(
    workload=st.lists(requests, min_size=1, max_size=8),
    script=st.lists(st.one_of(moves, moves, moves, moves, faults), max_size=60),
    num_blocks=st.integers(7, 24),
    budget=st.integers(3, 40),
    threshold=st.sampled_from([None, None, 0, 1, 5]),
    worker_budgets=st.sampled_from([(64,), (64,), (64, 5), (2, 64, 9)]),
    slots=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    num_workers=st.sampled_from([1, 1, 2, 3]),
    run_ahead=st.booleans(),
    caching=st.booleans(),
    max_drafts=st.sampled_from([0, 0, 1, 3, 7]),
    drafts_itself=st.booleans(),
    max_forced=st.sampled_from([0, 2, 15]),
    needs_history=st.booleans(),
    has_drafters=st.booleans(),
    num_host_blocks=st.sampled_from([0, 4, 40]),
    num_disk_blocks=st.sampled_from([0, 6, 60, 60]),
    offload_min_accesses=st.sampled_from([1, 1, 2]),
    swaps_preempted=st.booleans(),
    prompt_delay_factor=st.sampled_from([0.0, 0.0, 2.0]),
    fails_rows=st.booleans(),
)
def test_tokens_do_not_depend_on_the_schedule(
    workload: list[dict],
    script: list[tuple],
    num_blocks: int,
    budget: int,
    threshold: int | None,
    worker_budgets: tuple[int, ...],
    slots: list[int],
    num_workers: int,
    run_ahead: bool,
    caching: bool,
    max_drafts: int,
    drafts_itself: bool,
    max_forced: int,
    needs_history: bool,
    has_drafters: bool,
    num_host_blocks: int,
    num_disk_blocks: int,
    offload_min_accesses: int,
    swaps_preempted: bool,
    prompt_delay_factor: float,
    fails_rows: bool,
) -> None:
    infos = [
        worker_info(
            # Where the memory is what ends sequences, it must be of the same size everywhere.
            num_blocks=num_blocks + (3 * i if num_blocks >= LARGE_POOL else 0),
            block_size=BLOCK_SIZE,
            max_num_seqs=num_slots,
            max_num_batched_tokens=worker_budgets[i % len(worker_budgets)],
            max_draft_tokens=max_drafts,
            drafts_itself=drafts_itself,
            max_forced_tokens=max_forced,
            needs_history=needs_history,
            num_host_blocks=num_host_blocks,
            num_disk_blocks=num_disk_blocks,
        )
        for i, num_slots in enumerate(slots)
    ]
    driver = Players(
        infos,
        has_drafters and max_drafts > 0,
        fails_rows,
        max_num_batched_tokens=budget,
        long_prefill_token_threshold=threshold,
        run_ahead=run_ahead,
        enable_prefix_caching=caching,
        offload_min_accesses=offload_min_accesses,
        swaps_preempted=swaps_preempted,
        prompt_delay_factor=prompt_delay_factor,
    )
    for _ in range(num_workers - 1):
        driver.join()
    waiting = list(enumerate(workload))
    cancelled: set[tuple[int, int | None]] = set()
    dropped: set[int] = set()

    def play(move: tuple) -> None:
        driver.release_leavers()
        match move:
            case ("wait",):
                driver.now += 5.0
            case ("submit",) if waiting:
                handle, fields = waiting.pop(0)
                driver.submit(handle, **fields)
            case ("cancel", handle, index):
                driver.engine.cancel(driver.client, handle, index)
                cancelled.add((handle, index))
            case ("join", _):
                driver.join()
            case ("late output", _):
                driver.answer_late()
            case ("reconnect", _):
                submitted = dict(enumerate(workload[: len(workload) - len(waiting)]))
                dropped.update(reconnect(driver, submitted))
            case (name, number) if driver.peers:
                play_with(driver.peers[number % len(driver.peers)], name)
        driver.collect()

    def play_with(peer: Peer, name: str) -> None:
        match name:
            case "plan":
                driver.plan(peer)
            case "deliver":
                driver.deliver(peer)
            case "reply":
                driver.reply(peer)
            case "store":
                driver.store(peer)
            case "report":
                driver.report(peer)
            case "lose files":
                peer.worker.tiers.files.clear()
            case "fail":
                driver.fail(peer)
            case "lose" | "leave":
                driver.lose_worker(peer, is_fault=name == "lose")
            case "drain":
                driver.drain(peer)
            case "license" | "no license" | "license asked":
                driver.engine.note_license(peer.replica, LICENSES[name])
            case "lose drafter" if peer.drafter is not None:
                driver.lose_drafter(peer)
            case "new drafter" if peer.drafter is None and max_drafts:
                driver.give_drafter(peer)

    for move in script:
        play(move)
    for handle, fields in waiting:
        driver.submit(handle, **fields)
    driver.finish()

    got = driver.got
    for handle, fields in enumerate(workload):
        if handle in got.errors:
            code, message = got.errors[handle]
            assert code in (500, 503), "only faults and licenses can fail these requests"
            if message == ROW_ERROR:
                assert fails_rows
                assert may_meet_poison(driver, handle, fields)
                event("a row failed")
            if code == 503:
                indexes = range(fields["n"])
                assert not any(got.tokens.get((handle, index)) for index in indexes), "it had begun"
            event("quarantined" if code == 500 else "not licensed")
        for index in () if handle in dropped else range(fields["n"]):
            check_sequence(driver, handle, index, fields, cancelled)
    event(f"drafts accepted: {driver.engine.counters.speculation.accepted_tokens > 0}")
    num_forced = sum(peer.worker.num_forced_tokens for peer in driver.peers)
    event(f"forced by a grammar: {num_forced > 0}")
    event(f"preempted: {driver.engine.counters.num_preemptions > 0}")
    event(f"workers lost: {len(driver.lost) > 0}")
    num_loaded = sum(peer.worker.tiers.num_loaded for peer in driver.peers)
    event(f"loaded from the host: {num_loaded > 0}")
    num_files = sum(len(peer.worker.tiers.files) for peer in driver.peers)
    event(f"on disk: {num_files > 0}")
    event(f"pinned: {driver.engine.counters.num_pins > 0}")
    assert driver.engine.num_requests == 0
    assert driver.engine.num_running == driver.engine.num_waiting == 0
    for peer in driver.peers:
        assert peer.replica.waiting.num_sequences == peer.replica.waiting.num_tokens == 0
        assert peer.replica.load == 0
        peer.replica.worker.blocks.expire(math.inf)
    assert driver.engine.num_free_blocks == driver.engine.num_blocks, "blocks leaked"


def reconnect(driver: Driver, submitted: dict[int, dict]) -> set[int]:
    """The client's stream breaks: on a new one it asks for the rest of what it has seen in part.

    Returns what is not resumed: prompt log probabilities would come twice, which the client has to
    sort out.
    """
    got = driver.received.pop(driver.client)
    driver.engine.disconnect(driver.client)
    driver.client = driver.connect()
    driver.received[driver.client] = got
    dropped = set()
    for handle, fields in submitted.items():
        indexes = range(fields["n"])
        finished = tuple(index for index in indexes if (handle, index) in got.reasons)
        if fields["prompt_logprobs"] is not None:
            dropped.add(handle)
        elif len(finished) < fields["n"] and handle not in got.errors:
            emitted = [
                [] if index in finished else got.tokens.get((handle, index), [])
                for index in indexes
            ]
            driver.submit(
                handle,
                emitted_token_ids=tuple(map(pack, emitted)) if any(emitted) else (),
                finished_indexes=finished,
                **fields,
            )
    return dropped


def may_meet_poison(driver: Driver, handle: int, fields: dict) -> bool:
    sampling = make_request(handle, **fields).sampling
    seeds = [sequence_seed(fields["seed"], index) for index in range(fields["n"])]
    answers = [generate(fields["prompt"], sampling, driver.info, seed) for seed in seeds]
    return any(POISON in fields["prompt"] + answer for answer in answers)


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
