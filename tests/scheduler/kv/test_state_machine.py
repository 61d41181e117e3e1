"""The block manager against a model of an engine that overlaps, drafts, fails, aborts, preempts.

The model knows what every slot of KV memory holds and which prefixes are cached with which block,
pinned by whom and used when. After every rule the manager's whole state must agree with it.
"""

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from taco_scheduler.kv.block_manager import BlockManager, BlockTable, CacheNamespace
from taco_scheduler.kv.radix_tree import Node

BLOCK_SIZE = 2
NUM_BLOCKS = 24
MAX_SEQUENCES = 6
NAMESPACES = [CacheNamespace(), CacheNamespace(cache_salt="a"), CacheNamespace(adapter="a")]

Tokens = tuple[int, ...]
Prefix = tuple[CacheNamespace, Tokens]  # whole blocks: what a cached block is found by

token_ids = st.integers(0, 1)  # few, so that sequences meet
token_lists = st.lists(token_ids, min_size=1, max_size=6).map(tuple)
prompts = st.builds(lambda zeros, tail: (0,) * zeros + tail, st.integers(0, 12), token_lists)
picks = st.integers(0, 999)


def pack(tokens: Tokens) -> memoryview:
    return memoryview(struct.pack(f"<{len(tokens)}i", *tokens))


def num_blocks_for(num_tokens: int) -> int:
    return (num_tokens + BLOCK_SIZE - 1) // BLOCK_SIZE


@dataclass(eq=False)
class Sequence:
    namespace: CacheNamespace
    tokens: Tokens
    table: BlockTable
    num_cached_blocks: int
    num_reserved: int
    num_pinned: int  # blocks
    num_planned: int = field(init=False)  # tokens whose KV is there when all plans have run
    num_computed: int = field(init=False)  # tokens whose KV is there
    is_sampling: bool = False
    sealed: bool = False

    def __post_init__(self) -> None:
        self.num_planned = self.num_computed = self.num_cached_blocks * BLOCK_SIZE

    def prefix(self, num_blocks: int) -> Prefix:
        return self.namespace, self.tokens[: num_blocks * BLOCK_SIZE]

    def pinned(self) -> list[Prefix]:
        return [self.prefix(i + 1) for i in range(self.num_pinned)]


@dataclass(eq=False)
class Plan:
    """A sequence's part in a step; `emitted` is what it will turn out to have sampled."""

    step_id: int
    sequence: Sequence
    num_tokens: int
    emitted: Tokens
    slots: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Cached:
    block: int
    plan: Plan | None  # that fills the block
    last_unpin: int = -1


class BlockManagerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockManager(NUM_BLOCKS, BLOCK_SIZE)
        self.live: list[Sequence] = []
        self.in_flight: list[list[Plan]] = []  # by step
        self.history: list[tuple[CacheNamespace, Tokens]] = []
        # (block, offset) → the tokens up to this one for which the slot's KV was computed
        self.memory: dict[tuple[int, int], Prefix] = {}
        self.cached: dict[Prefix, Cached] = {}
        self.clock = 0
        self.next_step_id = 0

    # ------------------------------------------------------------------ rules

    @precondition(lambda self: len(self.live) < MAX_SEQUENCES)
    @rule(
        tokens=prompts,
        namespace=st.sampled_from(NAMESPACES),
        num_tokens=st.integers(0, 20),
        read_cache=st.sampled_from([True, True, False]),
        num_spare=st.sampled_from([0, 0, 4]),
    )
    def admit(
        self,
        tokens: Tokens,
        namespace: CacheNamespace,
        num_tokens: int,
        read_cache: bool,
        num_spare: int = 0,
    ) -> None:
        num_matched = self.longest_cached_prefix(namespace, tokens) if read_cache else 0
        matched = {(namespace, tokens[: i * BLOCK_SIZE]) for i in range(1, num_matched + 1)}
        num_new = max(0, num_blocks_for(num_tokens) - num_matched)
        num_available = len(self.free_blocks()) + len(self.unpinned() - matched)
        num_evicted = max(0, num_new - len(self.free_blocks()))
        before = self.snapshot()

        table = self.manager.allocate(
            pack(tokens), num_tokens, namespace, read_cache=read_cache, num_spare_blocks=num_spare
        )

        if num_new + num_spare > num_available:
            assert table is None
            assert self.snapshot() == before
            return
        assert table is not None
        assert table.num_cached_tokens == num_matched * BLOCK_SIZE
        for i in range(num_matched):
            prefix = (namespace, tokens[: (i + 1) * BLOCK_SIZE])
            assert table.blocks[i] == self.cached[prefix].block
        self.live.append(Sequence(namespace, tokens, table, num_matched, num_tokens, num_matched))
        self.note_evictions(num_evicted)

    @precondition(lambda self: self.history and len(self.live) < MAX_SEQUENCES)
    @rule(pick=picks, cut=st.integers(0, 6), tail=st.just(()) | token_lists)
    def admit_again(self, pick: int, cut: int, tail: Tokens) -> None:
        """A preempted sequence comes back, or a conversation goes on."""
        namespace, tokens = self.history[pick % len(self.history)]
        tokens = tokens[: max(1, len(tokens) - cut)] + tail
        self.admit(tokens, namespace, len(tokens), True)

    @precondition(lambda self: self.live)
    @rule(
        batch=st.sets(st.integers(0, MAX_SEQUENCES - 1), min_size=1),
        num_tokens=st.integers(1, 12),
        drafts=st.just(()) | token_lists,
        num_accepted=st.integers(0, 4),
        bonus=token_ids,
        publish=st.sampled_from([True, True, False]),
    )
    def send_step(
        self,
        batch: set[int],
        num_tokens: int,
        drafts: Tokens,
        num_accepted: int,
        bonus: int,
        publish: bool,
    ) -> None:
        """Chunks of prefill; at the end of the known tokens, sampling and verified drafts."""
        self.next_step_id += 1
        step = []
        for index in sorted(batch):
            if index < len(self.live) and not self.live[index].is_sampling:
                sequence = self.live[index]
                emitted = (*drafts[:num_accepted], bonus)
                plan = self.plan(sequence, num_tokens, drafts, emitted)
                if plan is not None:
                    step.append(plan)
                    if publish:
                        self.publish(sequence, plan)
        if step:
            self.in_flight.append(step)

    @precondition(lambda self: self.in_flight)
    @rule(count=st.integers(1, 3))
    def confirm(self, count: int) -> None:
        done, self.in_flight = self.in_flight[:count], self.in_flight[count:]
        self.manager.confirm(done[-1][0].step_id)
        for plan in chain.from_iterable(done):
            sequence = plan.sequence
            sequence.num_computed += plan.num_tokens
            if plan.emitted:
                num_accepted = len(plan.emitted) - 1
                sequence.tokens += plan.emitted
                sequence.num_computed += num_accepted
                sequence.num_planned += num_accepted
                sequence.is_sampling = False

    @precondition(lambda self: self.in_flight)
    @rule()
    def fail_step(self) -> None:
        """What was in flight never happened; whoever had a part in it or read of it starts anew."""
        failed, self.in_flight = list(chain.from_iterable(self.in_flight)), []
        for plan in failed:
            for slot in plan.slots:
                self.memory.pop(slot, None)
        self.next_step_id = 0  # a new epoch

        self.manager.withdraw()

        withdrawn = [prefix for prefix, entry in self.cached.items() if entry.plan in failed]
        for namespace, tokens in withdrawn:
            for other in list(self.cached):
                if other[0] == namespace and other[1][: len(tokens)] == tokens:
                    del self.cached[other]
        for sequence in self.live:
            while sequence.num_pinned and sequence.pinned()[-1] not in self.cached:
                sequence.num_pinned -= 1
                sequence.sealed = True
        affected = {plan.sequence for plan in failed}
        for sequence in list(self.live):
            if sequence in affected or not self.has_valid_memory(sequence):
                self.release(sequence)

    @precondition(lambda self: self.live)
    @rule(pick=picks)
    def end(self, pick: int) -> None:
        """Finish, abort or preemption, be a plan in flight or not."""
        self.release(self.live[pick % len(self.live)])

    @precondition(lambda self: self.unpinned())
    @rule(num_blocks=st.integers(1, NUM_BLOCKS))
    def squeeze(self, num_blocks: int) -> None:
        """A prompt that nobody shares comes and goes."""
        num_live = len(self.live)
        self.admit((2,), NAMESPACES[0], num_blocks * BLOCK_SIZE, False)
        if len(self.live) > num_live:
            self.release(self.live[-1])

    @precondition(lambda self: len(self.cached) > NUM_BLOCKS // 2)
    @rule()
    def lose_worker(self) -> None:
        """Its blocks go with it; the next worker's are managed anew."""
        for sequence in list(self.live):
            self.release(sequence)
        assert self.manager.num_free_blocks == NUM_BLOCKS
        self.manager = BlockManager(NUM_BLOCKS, BLOCK_SIZE)
        self.cached.clear()
        self.memory.clear()
        self.in_flight.clear()

    def teardown(self) -> None:
        """Idle, every block is free or cached; evicting all frees all."""
        for sequence in list(self.live):
            self.release(sequence)
        assert self.manager.num_free_blocks == NUM_BLOCKS
        assert self.manager.usage == 0
        self.squeeze(NUM_BLOCKS)
        assert self.manager._pool.num_free == NUM_BLOCKS
        assert not self.manager._tree._roots

    # -------------------------------------------------------------- invariants

    @invariant()
    def every_block_is_in_one_state(self) -> None:
        free = self.manager._pool._free
        assert len(free) == len(set(free))
        assert set(free) == self.free_blocks()
        assert self.manager.num_free_blocks == len(free) + len(self.unpinned())
        assert self.manager.usage == pytest.approx(1 - self.manager.num_free_blocks / NUM_BLOCKS)

    @invariant()
    def references_are_owners(self) -> None:
        owners = Counter(block for sequence in self.live for block in sequence.table.blocks)
        owners.update(entry.block for entry in self.cached.values())
        assert self.manager._pool._references == [owners[block] for block in range(NUM_BLOCKS)]

    @invariant()
    def tree_holds_what_the_model_cached(self) -> None:
        assert self.tree_blocks() == {prefix: entry.block for prefix, entry in self.cached.items()}

    @invariant()
    def cached_blocks_hold_their_tokens(self) -> None:
        for (namespace, tokens), entry in self.cached.items():
            for offset in range(BLOCK_SIZE):
                end = len(tokens) - BLOCK_SIZE + offset + 1
                assert self.memory[entry.block, offset] == (namespace, tokens[:end])

    @invariant()
    def tree_is_well_formed(self) -> None:
        locks = Counter(prefix for sequence in self.live for prefix in sequence.pinned())
        tree = self.manager._tree
        unlocked = set()
        for namespace, tokens, node in self.nodes():
            assert node.blocks
            assert len(node.key) == len(node.blocks) * tree._block_bytes
            assert node.parent is not None
            assert node.parent.children[bytes(node.key[: tree._block_bytes])] is node
            start = len(tokens) - len(node.blocks) * BLOCK_SIZE
            for end in range(start + BLOCK_SIZE, len(tokens) + 1, BLOCK_SIZE):
                assert node.lock_count == locks[namespace, tokens[:end]]
            if node.lock_count == 0:
                unlocked.add(node)
        assert set(tree._lru) == unlocked
        assert tree.num_evictable == sum(len(node.blocks) for node in unlocked)
        for root in tree._roots.values():
            assert root.children or root.lock_count

    @invariant()
    def sequences_own_what_they_need(self) -> None:
        for sequence in self.live:
            blocks = sequence.table.blocks
            needed = max(num_blocks_for(sequence.num_reserved), sequence.num_cached_blocks)
            assert len(blocks) == needed
            assert len(set(blocks)) == needed
            assert self.has_valid_memory(sequence)
            for block in blocks[sequence.num_planned // BLOCK_SIZE :]:
                assert self.manager._pool._references[block] == 1, "a writable block is shared"

    # ------------------------------------------------------------------- model

    def longest_cached_prefix(self, namespace: CacheNamespace, tokens: Tokens) -> int:
        lengths = range((len(tokens) - 1) // BLOCK_SIZE, 0, -1)
        return next((n for n in lengths if (namespace, tokens[: n * BLOCK_SIZE]) in self.cached), 0)

    def free_blocks(self) -> set[int]:
        used = {block for sequence in self.live for block in sequence.table.blocks}
        used |= {entry.block for entry in self.cached.values()}
        return set(range(NUM_BLOCKS)) - used

    def unpinned(self) -> set[Prefix]:
        return set(self.cached) - {prefix for each in self.live for prefix in each.pinned()}

    def has_valid_memory(self, sequence: Sequence) -> bool:
        return all(
            self.memory.get((sequence.table.blocks[i // BLOCK_SIZE], i % BLOCK_SIZE))
            == (sequence.namespace, sequence.tokens[: i + 1])
            for i in range(sequence.num_planned)
        )

    def note_cached(self, sequence: Sequence, num_tokens: int, plan: Plan | None) -> None:
        if sequence.sealed:
            return
        for i in range(sequence.num_pinned, num_tokens // BLOCK_SIZE):
            entry = Cached(sequence.table.blocks[i], plan)
            self.cached.setdefault(sequence.prefix(i + 1), entry)
            sequence.num_pinned = i + 1

    def note_evictions(self, expected: int) -> None:
        """Exactly `expected` blocks left the tree, unpinned ones, least recently used first."""
        evictable = self.unpinned()
        evicted = set(self.cached) - set(self.tree_blocks())
        assert len(evicted) == expected
        assert evicted <= evictable
        last_unpins = [self.cached[prefix].last_unpin for prefix in evictable - evicted]
        for prefix in evicted:
            assert self.cached.pop(prefix).last_unpin <= min(last_unpins, default=self.clock)

    def plan(
        self, sequence: Sequence, num_tokens: int, drafts: Tokens, emitted: Tokens
    ) -> Plan | None:
        start = sequence.num_planned
        end = min(start + num_tokens, len(sequence.tokens))
        samples = end == len(sequence.tokens)
        written = sequence.tokens[:end] + (drafts if samples else ())
        if not self.extend(sequence, len(written)):
            return None
        plan = Plan(self.next_step_id, sequence, end - start, emitted if samples else ())
        for position in range(start, len(written)):
            block = sequence.table.blocks[position // BLOCK_SIZE]
            assert self.manager._pool._references[block] == 1, "a block that is written is shared"
            slot = (block, position % BLOCK_SIZE)
            self.memory[slot] = (sequence.namespace, written[: position + 1])
            plan.slots.append(slot)
        sequence.num_planned = end
        sequence.is_sampling = samples
        return plan

    def publish(self, sequence: Sequence, plan: Plan) -> None:
        tokens, num_tokens = pack(sequence.tokens), sequence.num_planned
        self.manager.publish(sequence.table, tokens, num_tokens, plan.step_id)
        self.note_cached(sequence, num_tokens, plan)

    def extend(self, sequence: Sequence, num_tokens: int) -> bool:
        num_new = num_blocks_for(num_tokens) - len(sequence.table.blocks)
        num_free = len(self.free_blocks())
        num_available = num_free + len(self.unpinned())
        before = self.snapshot()
        blocks = self.manager.extend(sequence.table, num_tokens)
        if num_new > num_available:
            assert blocks is None
            assert self.snapshot() == before
            return False
        assert blocks is not None
        assert len(blocks) == max(0, num_new)
        assert sequence.table.blocks[len(sequence.table.blocks) - len(blocks) :] == blocks
        sequence.num_reserved = max(sequence.num_reserved, num_tokens)
        self.note_evictions(max(0, num_new - num_free))
        return True

    def release(self, sequence: Sequence) -> None:
        tokens = pack(sequence.tokens)
        self.note_cached(sequence, sequence.num_computed, None)
        self.clock += 1
        for prefix in sequence.pinned():
            self.cached[prefix].last_unpin = self.clock
        self.live.remove(sequence)
        self.history = [*self.history[-4:], (sequence.namespace, sequence.tokens)]
        self.manager.release(sequence.table, tokens, sequence.num_computed)
        with pytest.raises(RuntimeError, match="has been released"):
            self.manager.release(sequence.table, tokens, sequence.num_computed)

    # ------------------------------------------------- the manager's own state

    def nodes(self) -> Iterator[tuple[CacheNamespace, Tokens, Node]]:
        """Every node with the tokens from its root to its end."""
        for namespace, root in self.manager._tree._roots.items():
            assert isinstance(namespace, CacheNamespace)
            pending: list[tuple[Tokens, Node]] = [((), root)]
            while pending:
                tokens, node = pending.pop()
                for child in node.children.values():
                    extended = tokens + struct.unpack(f"<{len(child.key) // 4}i", child.key)
                    pending.append((extended, child))
                    yield namespace, extended, child

    def tree_blocks(self) -> dict[Prefix, int]:
        found = {}
        for namespace, tokens, node in self.nodes():
            start = len(tokens) - len(node.blocks) * BLOCK_SIZE
            for i, block in enumerate(node.blocks, 1):
                found[namespace, tokens[: start + i * BLOCK_SIZE]] = block
        return found

    def snapshot(self) -> object:
        manager = self.manager
        return (
            list(manager._pool._free),
            list(manager._pool._references),
            [(namespace, tokens, node.lock_count) for namespace, tokens, node in self.nodes()],
            list(manager._tree._lru),
            [(each.table.blocks.copy(), each.table.node) for each in self.live],
        )


BlockManagerMachine.TestCase.settings = settings(
    max_examples=500, stateful_step_count=100, deadline=None
)
TestBlockManager = BlockManagerMachine.TestCase
