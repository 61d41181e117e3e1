"""State snapshots in the radix tree and in the block manager, against models of what they hold."""

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from support.kv_model import Tokens, pack
from support.recurrent_worker import check_snapshots
from taco_scheduler.kv.block_ids import block_ids
from taco_scheduler.kv.block_table import BlockTable
from taco_scheduler.kv.namespace import CacheNamespace
from taco_scheduler.kv.prefix_match import up_to_snapshot
from taco_scheduler.kv.radix_node import Node, Root
from taco_scheduler.kv.radix_tree import RadixTree
from taco_scheduler.kv.recurrent_block_manager import RecurrentBlockManager
from taco_scheduler.kv.sequence_snapshots import NO_SNAPSHOT, SequenceSnapshots
from taco_scheduler.kv.state_snapshots import StateSnapshots

pytestmark = pytest.mark.slow

BLOCK_BYTES = 2
NAMESPACE = CacheNamespace()
BLOCK_SIZE = 2


def a_node(num_blocks: int = 4) -> Node:
    return Node(Root(NAMESPACE), b"ab" * num_blocks, block_ids(range(num_blocks)))


def cached(pool: StateSnapshots, node: Node, depth: int) -> int:
    snapshot = pool.take(1)
    assert snapshot is not None
    pool.attach(node, node.num_blocks, depth, snapshot)
    return snapshot


# ------------------------------------------------------------------- the pool


def test_the_least_recently_used_snapshot_is_evicted() -> None:
    pool, node = StateSnapshots(2), a_node()
    first, second = cached(pool, node, 4), cached(pool, node, 2)
    assert pool.read(node) == first
    pool.end_plan()
    assert pool.take(2) == second
    assert node.snapshots == {4: first}
    assert (pool.num_used, pool.num_pending) == (2, 1)


def test_snapshots_at_the_ends_of_pinned_prefixes_are_evicted_last() -> None:
    pool, node, other = StateSnapshots(3), a_node(), a_node()
    inside, end, free = cached(pool, node, 2), cached(pool, node, 4), cached(pool, other, 4)
    taken = [pool.take(2, lambda: {node}) for _ in range(4)]
    assert taken == [inside, free, end, None]


def test_a_pinned_prefix_keeps_its_state() -> None:
    manager = RecurrentBlockManager(100, BLOCK_SIZE, 4)
    pinned = tuple(range(9))
    for number in range(12):
        tokens = pinned if number == 0 else tuple(range(100 * number, 100 * number + 9))
        table = manager.allocate(pack(tokens), len(tokens), NAMESPACE)
        assert table is not None
        assert manager.save_state(table, 8, number) is not None
        manager.snapshots.end_plan()
        manager.publish(table, pack(tokens), len(tokens), None)
        manager.confirm(number)
        manager.release(table, pack(tokens), len(tokens))
        if number == 0:
            assert manager.pin_prefix(pack(tokens), NAMESPACE, until=10.0)
    assert manager.find(pack(pinned), NAMESPACE).num_blocks * BLOCK_SIZE == 8
    manager.expire(11.0)
    assert manager.snapshots.num_used == 4
    for number in range(4):
        assert manager.snapshots.take(20 + number) is not None
    assert manager.find(pack(pinned), NAMESPACE).num_blocks == 0


def test_what_the_next_plan_reads_is_not_written_by_it() -> None:
    pool, node = StateSnapshots(1), a_node()
    snapshot = cached(pool, node, 4)
    pool.read(node)
    assert pool.take(2) is None
    pool.end_plan()
    assert pool.take(2) == snapshot
    assert pool.take(2) is None, "it is pending"
    pool.release(snapshot)
    assert pool.num_used == 0


def test_a_position_keeps_its_first_snapshot() -> None:
    pool, node = StateSnapshots(3), a_node()
    first = cached(pool, node, 3)
    cached(pool, node, 3)
    assert node.snapshots == {3: first}
    assert pool.num_used == 1


def test_snapshots_of_a_failed_step_are_free() -> None:
    pool, node = StateSnapshots(3), a_node()
    kept = cached(pool, node, 1)
    pool.confirm(1)
    pending = pool.take(2)
    assert pending is not None
    pool.attach(node, 4, 2, pending)
    pool.withdraw()
    assert node.snapshots == {1: kept}
    assert pool.num_used == 1


def test_unused_snapshots_cost_no_memory() -> None:
    pool = StateSnapshots(2**40)
    assert pool.take(1) == 0
    assert pool.num_used == 1


@pytest.mark.parametrize(
    ("positions", "num_computed", "num_tokens", "expected"),
    [([], 0, 9, 9), ([8], 0, 9, 9), ([4, 8], 0, 9, 4), ([4, 8], 0, 7, 7), ([4, 8], 2, 6, 2)],
)
def test_a_chunk_saves_one_state(
    positions: list[int], num_computed: int, num_tokens: int, expected: int
) -> None:
    states = SequenceSnapshots(positions=positions)
    assert states.limit_chunk(num_computed, num_tokens) == expected


# ------------------------------------------------------------------- the tree

keys = st.lists(st.sampled_from([b"aa", b"ab", b"ba"]), max_size=8).map(b"".join)


@given(
    st.lists(st.tuples(keys, st.sets(st.integers(1, 8))), max_size=8),
    st.lists(st.tuples(st.sampled_from(["pin", "evict", "match"]), keys), max_size=12),
)
@settings(max_examples=300, deadline=None)
def test_a_match_ends_at_the_deepest_snapshot(
    prefixes: list[tuple[bytes, set[int]]], moves: list[tuple[str, bytes]]
) -> None:
    tree = RadixTree(BLOCK_BYTES)
    pool = tree.snapshots = StateSnapshots(200)
    numbers = count()
    blocks: dict[bytes, int] = {}
    snapshots: dict[bytes, int] = {}
    for key, depths in prefixes:
        num_blocks = len(key) // BLOCK_BYTES
        new = [next(numbers) for _ in range(num_blocks)]
        node, _ = tree.insert(tree.pin(tree.match(NAMESPACE, b"")), key, block_ids(new), None)
        for i, block in enumerate(new, 1):
            blocks.setdefault(key[: i * BLOCK_BYTES], block)
        for depth in depths & set(range(1, num_blocks + 1)):
            snapshot = pool.take(1)
            assert snapshot is not None
            pool.attach(node, num_blocks, depth, snapshot)
            snapshots.setdefault(key[: depth * BLOCK_BYTES], snapshot)
        tree.unpin(node)
    for move, key in [*moves, *(("match", key) for key, _ in prefixes)]:
        if move == "evict":
            gone = set(tree.evict(1))
            blocks = {prefix: block for prefix, block in blocks.items() if block not in gone}
            snapshots = {prefix: s for prefix, s in snapshots.items() if prefix in blocks}
            continue
        ends = range(BLOCK_BYTES, len(key) + 1, BLOCK_BYTES)
        saved = max((end for end in ends if key[:end] in snapshots), default=0)
        match = up_to_snapshot(tree.match(NAMESPACE, key))
        expected = [blocks[key[:end]] for end in ends if end <= saved]
        assert list(match.blocks) == expected
        assert match.num_evictable == len(expected)
        if move == "pin" and saved:
            end = tree.pin(match)
            assert pool.read(end) == snapshots[key[:saved]]
            assert tree.num_evictable == len(blocks) - len(expected)
            tree.unpin(end)
    assert pool.num_used == len(snapshots)
    tree.evict(len(blocks))
    assert pool.num_used == 0


def test_snapshots_leave_with_a_withdrawn_node() -> None:
    tree = RadixTree(BLOCK_BYTES)
    pool = tree.snapshots = StateSnapshots(4)
    root = tree.pin(tree.match(NAMESPACE, b""))
    node, _ = tree.insert(root, b"aabb", block_ids([0, 1]), 7)
    snapshot = pool.take(6)
    assert snapshot is not None
    pool.attach(node, 2, 2, snapshot)
    pool.confirm(6)
    tree.withdraw()
    assert pool.num_used == 0


# ---------------------------------------------------------- the block manager

token_lists = st.lists(st.integers(0, 1), min_size=1, max_size=6).map(tuple)
prompts = st.builds(lambda zeros, tail: (0,) * zeros + tail, st.integers(0, 10), token_lists)
picks = st.integers(0, 99)


class SnapshotMachine(RuleBasedStateMachine):
    """Sequences that run, save states at any block, fail and end.

    The model knows the tokens of each snapshot's state, and how many tokens of each sequence the
    steps in flight compute. As in the engine, no output is committed between the admission of a
    sequence and the plan that it joins with.
    """

    @initialize(num_snapshots=st.integers(1, 6), max_cached=st.sampled_from([None, 8]))
    def start(self, num_snapshots: int, max_cached: int | None) -> None:
        self.manager = RecurrentBlockManager(
            24, BLOCK_SIZE, num_snapshots, max_cached_device_blocks=max_cached
        )
        self.states: dict[int, Tokens | None] = {}
        self.joined: set[BlockTable] = set()  # since the last step
        self.writers: dict[int, BlockTable] = {}
        self.live: list[tuple[BlockTable, Tokens]] = []
        self.num_computed: dict[BlockTable, int] = {}
        self.in_flight: list[tuple[int, dict[BlockTable, int], set[int]]] = []
        self.step_id = 0

    @precondition(lambda self: len(self.live) < 5)
    @rule(tokens=prompts, read_cache=st.sampled_from([True, True, False]))
    def admit(self, tokens: Tokens, read_cache: bool) -> None:
        packed = pack(tokens)
        found = self.manager.find(packed, NAMESPACE, read_cache=read_cache)
        table = self.manager.allocate(packed, len(tokens), NAMESPACE, read_cache=read_cache)
        if table is None:
            return
        num_cached = table.num_cached_tokens
        assert num_cached == found.num_blocks * BLOCK_SIZE < len(tokens)
        assert num_cached <= found.num_kv_blocks * BLOCK_SIZE
        assert table.states is not None
        snapshot = table.states.joined_from
        assert (snapshot == NO_SNAPSHOT) == (num_cached == 0)
        if num_cached:
            assert self.states[snapshot] == tokens[:num_cached]
        self.live.append((table, tokens))
        self.num_computed[table] = num_cached
        self.joined.add(table)

    @precondition(lambda self: self.live)
    @rule(batch=st.sets(st.integers(0, 4), min_size=1), num_tokens=st.integers(1, 8), at=picks)
    def step(self, batch: set[int], num_tokens: int, at: int) -> None:
        """A step computes tokens of some sequences, and saves a state of each if it can."""
        self.step_id += 1
        ran: dict[BlockTable, int] = {}
        written: set[int] = set()
        joined = [table for table, _ in self.live if table in self.joined]
        reads = {table.states.joined_from for table in joined if table.states is not None}
        for table, tokens in [self.live[i] for i in batch if i < len(self.live)]:
            start = self.num_computed[table]
            end = min(start + num_tokens, len(tokens))
            ends = [p for p in range(start + 1, end + 1) if p % BLOCK_SIZE == 0]
            if ends:
                position = ends[at % len(ends)]
                snapshot = self.manager.save_state(table, position, self.step_id)
                if snapshot is not None:
                    assert snapshot not in written | reads
                    written.add(snapshot)
                    self.states[snapshot] = tokens[:position]
                    self.writers[snapshot] = table
            self.num_computed[table] = end
            ran[table] = end - start
        self.manager.snapshots.end_plan()
        self.joined.clear()
        for table, tokens in self.live:
            if table in ran and at % 3:
                self.manager.publish(table, pack(tokens), self.num_computed[table], self.step_id)
        self.in_flight.append((self.step_id, ran, written))

    @precondition(lambda self: self.in_flight)
    @rule()
    def confirm(self) -> None:
        step_id, _, _ = self.in_flight.pop(0)
        self.manager.confirm(step_id)

    @precondition(lambda self: self.in_flight and not self.joined)
    @rule(luck=st.integers(0, 3))
    def fail(self, luck: int) -> None:
        if luck:
            return
        for _, _, written in self.in_flight:
            self.states.update(dict.fromkeys(written))
        self.manager.withdraw()
        for entry in list(self.live):
            self.release(entry)
        self.in_flight.clear()

    @precondition(lambda self: self.live)
    @rule(pick=picks, is_bad=st.sampled_from([False, False, True]))
    def end(self, pick: int, is_bad: bool) -> None:
        entry = self.live[pick % len(self.live)]
        is_bad = is_bad and not self.joined
        if is_bad:
            self.manager.discard_on_release(entry[0])
        self.release(entry)
        if is_bad:
            written = {s for s, table in self.writers.items() if table is entry[0]}
            assert not written & self.manager.snapshots._nodes.keys()

    @rule(tokens=prompts)
    def pin(self, tokens: Tokens) -> None:
        self.manager.pin_prefix(pack(tokens), NAMESPACE, 1.0)

    @rule()
    def expire(self) -> None:
        self.manager.expire(2.0)

    def release(self, entry: tuple[BlockTable, Tokens]) -> None:
        table, tokens = entry
        self.live.remove(entry)
        unconfirmed = sum(ran.get(table, 0) for _, ran, _ in self.in_flight)
        num_valid = self.num_computed.pop(table) - unconfirmed
        self.manager.release(table, pack(tokens), num_valid)

    @invariant()
    def each_snapshot_has_one_owner(self) -> None:
        if hasattr(self, "manager"):
            check_snapshots(self.manager)

    @invariant()
    def each_position_has_the_state_of_its_tokens(self) -> None:
        if not hasattr(self, "manager"):
            return
        pending: list[tuple[Node, bytes]] = [
            (root, b"") for root in self.manager._tree._roots.values()
        ]
        while pending:
            node, before = pending.pop()
            key = before + bytes(node.key)
            start = len(before)
            for index, snapshot in node.snapshots.items():
                tokens = self.states[snapshot]
                assert tokens is not None
                assert bytes(pack(tokens)) == key[: start + index * self.manager.block_bytes]
            pending += [(child, key) for child in node.children.values()]


SnapshotMachine.TestCase.settings = settings(
    max_examples=200, stateful_step_count=60, deadline=None
)
TestSnapshots = SnapshotMachine.TestCase
