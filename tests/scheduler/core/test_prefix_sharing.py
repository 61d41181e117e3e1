"""Tokens computed when requests with a common prefix arrive together."""

import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.engine_driver import Driver, make_request
from support.fake_worker import worker_info
from taco_scheduler.admission.fair_share import FairShare
from taco_scheduler.core.pending_prefixes import PendingPrefixes
from taco_scheduler.kv.radix_tree import RadixTree
from taco_scheduler.state.output_buffer import OutputBuffer
from taco_scheduler.state.sequence import new_request

BLOCK_SIZE = 16
TEMPLATE = list(range(BLOCK_SIZE))  # the first block of every prompt, as a chat template gives it


class Prompts:
    """Token ids that no other call returns in the same order."""

    def __init__(self) -> None:
        self._next = 0

    def tokens(self, count: int) -> list[int]:
        self._next += 1
        return [100 + self._next, *[7] * (count - 1)]


def driver(num_replicas: int = 1, **config: object) -> Driver:
    info = worker_info(
        block_size=BLOCK_SIZE,
        num_blocks=4096,
        max_model_len=4096,
        max_num_seqs=128,
        vocab_size=1000,
    )
    result = Driver(info, **{"max_num_batched_tokens": 8192, **config})
    for _ in range(num_replicas):
        result.attach()
    return result


def num_computed_tokens(d: Driver) -> int:
    return sum(int(plan.num_tokens.sum()) for plan in d.plans)


def compute_first_block(d: Driver) -> None:
    """Has the template's block in the cache of each replica."""
    for handle in range(1000, 1000 + len(d.peers)):
        d.submit(handle, [*TEMPLATE, handle - 500], max_tokens=1)
    d.run()
    d.plans.clear()


def grouped_prompts(num_groups: int) -> Iterator[list[int]]:
    """Eight prompts a group: the template, 1,024 tokens of the group, 32 tokens of the request."""
    prompts = Prompts()
    groups = [prompts.tokens(1024) for _ in range(num_groups)]
    for _ in range(8):
        for group in groups:
            yield TEMPLATE + group + prompts.tokens(32)


def test_requests_behind_a_cached_block_share_their_prefix() -> None:
    d = driver()
    compute_first_block(d)
    prompts = Prompts()
    common = TEMPLATE + prompts.tokens(1024 - BLOCK_SIZE)
    for handle in range(16):
        d.submit(handle, common + prompts.tokens(32), max_tokens=1)
    d.run()
    assert num_computed_tokens(d) == 1024 - BLOCK_SIZE + 16 * 32


def test_groups_behind_a_cached_block_share_their_prefixes() -> None:
    d = driver()
    compute_first_block(d)
    for handle, prompt in enumerate(grouped_prompts(8)):
        d.submit(handle, prompt, max_tokens=1)
    d.run()
    assert num_computed_tokens(d) == 8 * 1024 + 64 * 32


def test_groups_with_a_common_template_are_routed_to_the_replica_of_their_group() -> None:
    d = driver(num_replicas=2)
    compute_first_block(d)
    for handle, prompt in enumerate(grouped_prompts(8)):
        d.submit(handle, prompt, max_tokens=1)
    d.run()
    assert num_computed_tokens(d) <= 1.3 * (8 * 1024 + 64 * 32)


def test_a_prefix_that_runs_already_is_awaited() -> None:
    d = driver(max_num_batched_tokens=160, run_ahead=False)
    prompts = Prompts()
    common = prompts.tokens(400)
    d.submit(1, common + prompts.tokens(20), max_tokens=1)
    d.step()
    d.submit(2, common + prompts.tokens(20), max_tokens=1)
    d.run()
    assert num_computed_tokens(d) == 420 + 20


def test_a_sequence_that_awaits_a_prefix_is_not_matched_in_each_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    num_matches = 0
    match = RadixTree.match

    def counted(*arguments: object) -> object:
        nonlocal num_matches
        num_matches += 1
        return match(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(RadixTree, "match", counted)
    d = driver(max_num_batched_tokens=64)
    prompts = Prompts()
    common = prompts.tokens(3200)
    for handle in range(5):
        d.submit(handle, common + prompts.tokens(20), max_tokens=1)
    d.run()
    assert len(d.plans) > 50
    assert num_matches == 1 + 4 * 2, "once when they come, once when the prefix is there"


def test_common_tokens_of_waiting_sequences_are_stored_once() -> None:
    shares, pending = FairShare(), PendingPrefixes(4 * 16, 16)
    common = [7] * 50_000
    sequences = []
    for i in range(8):
        message = make_request(i, [*common, i, i], max_tokens=1)  # its last block is not full
        share = shares.share_of(message.tenant, 0)
        sequences += new_request(OutputBuffer(0), message, share, i, 0.0).sequences
    tracemalloc.start()
    try:
        for sequence in sequences:
            pending.add(sequence)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1.5 * 4 * len(common)
    last = sequences.pop()
    assert pending.num_common_tokens(last) == len(common)
    for sequence in sequences:
        sequence.tokens.extend([9] * 100)  # what they generate
        sequence.pack()
        pending.remove(sequence)
    assert pending.num_common_tokens(last) == len(common)
    pending.remove(last)
    assert pending.num_common_tokens(last) == 0


words = st.lists(st.integers(1, 2), max_size=5)  # each letter is five tokens


@given(
    prompts=st.lists(words, min_size=1, max_size=10),
    budget=st.integers(3, 60),
    threshold=st.sampled_from([None, 0, 1, 4, 7]),
    num_slots=st.integers(1, 6),
    run_ahead=st.booleans(),
    early=st.integers(0, 10),
)
def test_no_prefix_is_computed_twice(
    prompts: list[list[int]],
    budget: int,
    threshold: int | None,
    num_slots: int,
    run_ahead: bool,
    early: int,
) -> None:
    info = worker_info(num_blocks=512, max_num_seqs=num_slots, vocab_size=1000)
    d = Driver(
        info,
        max_num_batched_tokens=budget,
        run_ahead=run_ahead,
        long_prefill_token_threshold=threshold,
    )
    d.attach()
    whole: list[list[int]] = []
    for handle, word in enumerate(prompts):
        tokens = [letter for letter in word for _ in range(5)]
        whole.append([*tokens, 100 + handle])
        if handle == early:
            d.step()
        d.submit(handle, whole[-1], max_tokens=1)
    d.run()
    size = info.block_size
    expected = 0
    for i, tokens in enumerate(whole):
        shared = max((num_common(tokens, other) for other in whole[:i]), default=0)
        expected += len(tokens) - shared // size * size
    assert num_computed_tokens(d) == expected
    assert len(d.got.reasons) == len(prompts), "every request has ended"


def num_common(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
