"""What the block manager's state machine knows of it, and how its parts follow what it does.

Where the manager has a choice, as which host block it takes, what it did is looked up and checked.
"""

import struct
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

from support.kv_model import (
    BLOCK_SIZE,
    NOT_SENT,
    NUM_BLOCKS,
    Cached,
    Memory,
    Pin,
    Plan,
    Prefix,
    Sequence,
    Step,
    Tokens,
    contents_of,
    count_copies,
    num_blocks_for,
    pack,
)
from support.kv_store import Store
from taco_scheduler.kv.block_manager import BlockManager
from taco_scheduler.kv.disk_index import DiskIndex
from taco_scheduler.kv.disk_transfers import DiskTransfers
from taco_scheduler.kv.namespace import CacheNamespace
from taco_scheduler.kv.radix_node import NO_BLOCK, Node


class KvShadow:
    """The model of one manager after the other, and of the store that outlives them."""

    num_host_blocks: int
    num_disk_blocks: int
    min_uses: int
    max_cached: int | None
    history: list[tuple[CacheNamespace, Tokens]]
    clock: int
    store: Store

    def attach_worker(self) -> None:
        self.manager = BlockManager(
            NUM_BLOCKS,
            BLOCK_SIZE,
            num_host_blocks=self.num_host_blocks,
            num_disk_blocks=self.num_disk_blocks,
            offload_min_accesses=self.min_uses,
            max_cached_device_blocks=self.max_cached,
        )
        self.store.restart()
        self.memory = Memory()
        self.live: list[Sequence] = []
        self.in_flight: list[Step] = []
        self.cached: dict[Prefix, Cached] = {}
        self.next_step_id = 0
        self.hits = Counter[str]()
        self.pins: list[Pin] = []  # oldest first

    @property
    def traffic(self) -> DiskTransfers | None:
        disk = self.manager.disk
        return disk if isinstance(disk, DiskTransfers) else None

    @property
    def tier(self) -> DiskIndex:
        assert self.traffic is not None
        return self.traffic._disk

    # ------------------------------------------------------------------- model

    def longest_match(
        self, namespace: CacheNamespace, tokens: Tokens
    ) -> tuple[list[Prefix], list[Prefix]]:
        """What the device holds of a prefix, and what the host holds behind that."""
        found: tuple[list[Prefix], list[Prefix]] = ([], [])
        for num_blocks in range(1, (len(tokens) - 1) // BLOCK_SIZE + 1):
            prefix = namespace, tokens[: num_blocks * BLOCK_SIZE]
            entry = self.cached.get(prefix)
            if entry is None or (entry.block is None and entry.copied_by is not None):
                break
            found[entry.block is None].append(prefix)
        return found

    def free_blocks(self) -> set[int]:
        used = {block for sequence in self.live for block in sequence.table.blocks}
        used |= {entry.block for entry in self.cached.values() if entry.block is not None}
        return set(range(NUM_BLOCKS)) - used

    def unpinned(self) -> set[Prefix]:
        """What can be evicted from the device."""
        on_device = {prefix for prefix, entry in self.cached.items() if entry.block is not None}
        return on_device - set(self.locked())

    def locked(self) -> Iterator[Prefix]:
        """What sequences and pins keep, once for each of them."""
        for sequence in self.live:
            yield from sequence.pinned()
        for pin in self.pins:
            yield from pin.prefixes()

    def is_on_device(self, prefix: Prefix) -> bool:
        return prefix in self.cached and self.cached[prefix].block is not None

    def host_block_of(self, prefix: Prefix) -> int:
        block = self.cached[prefix].host_block
        return NO_BLOCK if block is None else block

    def is_offloaded_now(self, block: int | None, host_block: int | None) -> bool:
        host = self.manager._host
        return host is not None and (host_block, block) in host._offloads.items()

    def on_host_alone(self) -> list[Prefix]:
        return [prefix for prefix, entry in self.cached.items() if entry.block is None]

    def num_pinned_of(self, owner: str) -> int:
        return sum(pin.num_blocks for pin in self.pins if pin.owner == owner)

    def give_way(self, num_blocks: int, needed: Iterable[Prefix] = ()) -> bool:
        """End the oldest pins until `num_blocks` can be had; returns whether one was ended.

        Args:
            needed: blocks that are no help.
        """
        users = {prefix for sequence in self.live for prefix in sequence.pinned()} | set(needed)
        num_free, ended = len(self.free_blocks()), False
        while num_blocks > num_free + len(self.unpinned() - set(needed)):
            pinned_only = {prefix for pin in self.pins for prefix in pin.prefixes()} - users
            num_most = num_free + len((self.unpinned() | pinned_only) - set(needed))
            if num_blocks > num_most:
                break
            self.end_pin(next(pin for pin in self.pins if pin.prefixes()[-1] not in users))
            ended = True
        return ended

    def end_pin(self, pin: Pin) -> None:
        self.pins.remove(pin)
        self.clock += 1
        for prefix in pin.prefixes():
            if prefix in self.cached:
                self.cached[prefix].last_unpin = self.clock

    def end_all_pins(self) -> None:
        self.manager.expire(float("inf"))
        for pin in list(self.pins):
            self.end_pin(pin)

    def host_copies(self) -> Counter[int]:
        """How many copies, planned or in flight, and files, read or write each host block."""
        copies = count_copies(self.in_flight) + self.disk_owners()
        if self.manager._host is not None:
            copies.update(self.manager._host._loads.values())
            copies.update(list(self.manager._host._offloads))
        return copies

    def device_contents(self, block: int) -> list[Prefix | None]:
        """What the rows of the next step will find."""
        host = self.manager._host
        if host is not None and block in host._loads:
            return self.memory.host[host._loads[block]]
        return self.memory.device_block(block)

    def has_valid_memory(self, sequence: Sequence) -> bool:
        num_full, num_rest = divmod(sequence.num_planned, BLOCK_SIZE)
        blocks = sequence.table.blocks
        rest = (sequence.namespace, sequence.tokens[: sequence.num_planned])
        return all(
            self.device_contents(blocks[i]) == contents_of(sequence.prefix(i + 1))
            for i in range(num_full)
        ) and (not num_rest or self.device_contents(blocks[num_full])[num_rest - 1] == rest)

    def note_cached(self, sequence: Sequence, num_tokens: int, step_id: int | None) -> None:
        if sequence.sealed:
            return
        for i in range(sequence.num_pinned, num_tokens // BLOCK_SIZE):
            entry = self.cached.setdefault(sequence.prefix(i + 1), Cached(None))
            entry.num_uses += 1
            if entry.block is None:
                entry.block = sequence.table.blocks[i]
                entry.filled_by = step_id
            sequence.num_pinned = i + 1

    def note_evictions(self, expected: int, copied: Counter[int], num_locked: int = 0) -> None:
        """Exactly `expected` blocks left the device, unpinned ones, least recently used first. They
        went to the host if they could, which may have dropped others.

        Args:
            copied: host blocks that copies used before.
            num_locked: others that could not be had.
        """
        evictable = self.unpinned()
        found = self.tree_blocks()
        on_device = {prefix for prefix, (block, _) in found.items() if block is not None}
        evicted = {p for p, entry in self.cached.items() if entry.block is not None} - on_device
        assert len(evicted) == expected
        assert evicted <= evictable
        last_unpins = [self.cached[prefix].last_unpin for prefix in evictable - evicted]
        uncopied = {prefix for prefix in evicted if self.cached[prefix].host_block is None}
        unwanted = {p for p in uncopied if self.cached[p].num_uses < self.min_uses}
        for prefix in evicted:
            if self.cached[prefix].filled_by == NOT_SENT:  # its load is cancelled
                copied[self.host_block_of(prefix)] -= 1
        for prefix in evicted:
            entry = self.cached[prefix]
            assert entry.last_unpin <= min(last_unpins, default=self.clock)
            if prefix in found and self.is_offloaded_now(entry.block, found[prefix][1]):
                assert prefix not in unwanted
                assert not copied[self.host_block_of(prefix)]
                entry.host_block = found[prefix][1]
                entry.copied_by = NOT_SENT
            entry.block = None
        lost = {prefix for prefix in evicted if prefix not in found}
        # What had a copy may have lost it as a duplicate, before it was evicted itself.
        without_copy = {p for p in lost if not copied[self.host_block_of(p)]}
        self.note_host_drops(found, self.descendants(without_copy), copied)
        if (lost & uncopied) - self.descendants(unwanted):
            assert copied or len(evicted - unwanted) > self.num_host_blocks - num_locked
        self.forget(lost)

    def note_host_drops(
        self,
        found: dict[Prefix, tuple[int | None, int | None]],
        lost: set[Prefix],
        copied: Counter[int],
    ) -> None:
        """What the device has too left the host, or leaves did, those first that came first."""
        dropped = []
        for prefix, entry in self.cached.items():
            if entry.host_block is None or prefix in lost:
                continue
            if prefix not in found:
                dropped.append(prefix)
            elif found[prefix][1] is None:
                assert entry.block is not None
                assert not copied[entry.host_block]
                entry.host_block = None
        if dropped:
            self.check_host_order(found, dropped, copied)
        self.forget(dropped)

    def check_host_order(
        self,
        found: dict[Prefix, tuple[int | None, int | None]],
        dropped: list[Prefix],
        copied: Counter[int],
    ) -> None:
        ancestors = {
            (namespace, tokens[:end])
            for namespace, tokens in found
            for end in range(BLOCK_SIZE, len(tokens), BLOCK_SIZE)
        }
        last_unpins = [
            self.cached[prefix].last_unpin
            for prefix, (block, host_block) in found.items()
            if block is None
            and host_block is not None
            and not copied[host_block]
            and prefix not in ancestors
        ]
        for prefix in dropped:
            entry = self.cached[prefix]
            assert entry.host_block is not None
            assert not copied[entry.host_block]
            assert entry.last_unpin <= min(last_unpins, default=self.clock)

    def descendants(self, prefixes: set[Prefix]) -> set[Prefix]:
        """What continues them in the cache, themselves included."""
        if not prefixes:
            return set()
        return {
            (namespace, tokens)
            for namespace, tokens in self.cached
            if any(
                (namespace, tokens[:end]) in prefixes
                for end in range(BLOCK_SIZE, len(tokens) + 1, BLOCK_SIZE)
            )
        }

    def forget(self, prefixes: Iterable[Prefix]) -> None:
        """They leave the cache, with all that continues them."""
        for prefix in self.descendants(set(prefixes)):
            del self.cached[prefix]

    def plan(
        self, sequence: Sequence, num_tokens: int, drafts: Tokens, emitted: Tokens
    ) -> Plan | None:
        start = sequence.num_planned
        end = min(start + num_tokens, len(sequence.tokens))
        samples = end == len(sequence.tokens)
        written = sequence.tokens[:end] + (drafts if samples else ())
        if not self.extend(sequence, len(written)):
            return None
        return Plan(sequence, start, written, end - start, emitted if samples else ())

    def take_copies(self, step: Step) -> None:
        in_use = self.host_copies()
        step.copies = self.manager.take_copies(step.step_id)
        if step.copies is not None:
            self.memory.copy(step.copies)
        self.note_saves(step, in_use)
        for entry in self.cached.values():
            if entry.filled_by == NOT_SENT:
                entry.filled_by = step.step_id
            if entry.copied_by == NOT_SENT:
                entry.copied_by = step.step_id

    def run(self, plan: Plan) -> None:
        sequence = plan.sequence
        for position in range(plan.start, len(plan.written)):
            block = sequence.table.blocks[position // BLOCK_SIZE]
            assert self.manager._pool._references[block] == 1, "a block that is written is shared"
        self.memory.write(plan)
        sequence.num_planned = plan.start + plan.num_tokens
        sequence.is_sampling = bool(plan.emitted)

    def publish(self, sequence: Sequence, step_id: int) -> None:
        tokens, num_tokens = pack(sequence.tokens), sequence.num_planned
        self.manager.publish(sequence.table, tokens, num_tokens, step_id)
        self.note_cached(sequence, num_tokens, step_id)

    def extend(self, sequence: Sequence, num_tokens: int) -> bool:
        num_new = num_blocks_for(num_tokens) - len(sequence.table.blocks)
        num_free = len(self.free_blocks())
        has_given_way = self.give_way(num_new)
        num_available = num_free + len(self.unpinned())
        before, copied = self.snapshot(), self.host_copies()
        blocks = self.manager.extend(sequence.table, num_tokens)
        if num_new > num_available:
            assert blocks is None
            assert has_given_way or self.snapshot() == before
            return False
        assert blocks is not None
        assert len(blocks) == max(0, num_new)
        assert sequence.table.blocks[len(sequence.table.blocks) - len(blocks) :] == blocks
        sequence.num_reserved = max(sequence.num_reserved, num_tokens)
        self.note_evictions(max(0, num_new - num_free), copied)
        return True

    def release(self, sequence: Sequence, *, comes_back: bool = False) -> None:
        tokens, copied = pack(sequence.tokens), self.host_copies()
        self.note_cached(sequence, sequence.num_computed, None)
        self.clock += 1
        for prefix in sequence.pinned():
            entry = self.cached[prefix]
            entry.last_unpin = self.clock
            if comes_back:
                entry.num_uses = max(entry.num_uses, self.min_uses)
        self.live.remove(sequence)
        self.history = [*self.history[-4:], (sequence.namespace, sequence.tokens)]
        num_computed = sequence.num_computed
        self.manager.release(sequence.table, tokens, num_computed, comes_back=comes_back)
        with pytest.raises(RuntimeError, match="has been released"):
            self.manager.release(sequence.table, tokens, sequence.num_computed)
        max_cached = NUM_BLOCKS if self.max_cached is None else self.max_cached
        self.note_evictions(max(0, len(self.unpinned()) - max_cached), copied)

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

    def tree_blocks(self) -> dict[Prefix, tuple[int | None, int | None]]:
        """The device block and the host block of every prefix."""
        found = {}
        for namespace, tokens, node in self.nodes():
            start = len(tokens) - node.num_blocks * BLOCK_SIZE
            device = [*node.blocks, *[None] * node.num_below]
            host = node.host_blocks or [NO_BLOCK] * node.num_blocks
            for i, blocks in enumerate(zip(device, host, strict=True), 1):
                block, host_block = blocks
                prefix = namespace, tokens[: start + i * BLOCK_SIZE]
                found[prefix] = block, None if host_block == NO_BLOCK else host_block
        return found

    def snapshot(self) -> object:
        manager, host = self.manager, self.manager._host
        return (
            list(manager._pool._free),
            list(manager._pool._references),
            [
                (
                    namespace,
                    tokens,
                    node,
                    node.lock_count,
                    list(node.blocks),
                    list(node.host_blocks),
                )
                for namespace, tokens, node in self.nodes()
            ],
            list(manager._tree._lru),
            list(manager._tree.host_cache.offloaded) if manager._tree.host_cache else [],
            host and (list(host._pool._references), dict(host._offloads), dict(host._loads)),
            [(list(each.table.blocks), each.table.node) for each in self.live],
        )

    # -------------------------------------------------------------------- disk

    def disk_owners(self) -> Counter[int]:
        """How often each host block is held for the disk."""
        if self.traffic is None:
            return Counter()
        held = (self.tier._writing, self.tier._reading, self.traffic._read)
        return Counter(block for blocks in held for block in blocks.values())

    def match_read(self, namespace: CacheNamespace, tokens: Tokens, start: int) -> list[Prefix]:
        """What was read from disk of a prefix, behind its first `start` blocks."""
        found: list[Prefix] = []
        if self.traffic is None or not self.traffic._read:
            return found
        num_readable = (len(tokens) - 1) // BLOCK_SIZE
        packed = bytes(pack(tokens[: num_readable * BLOCK_SIZE]))
        for file in self.tier.walk(namespace, packed)[start:]:
            if file.key not in self.traffic._read:
                break
            found.append(self.store.prefix(file.key))
        return found

    def read_blocks(self, prefixes: list[Prefix]) -> list[int]:
        """The host blocks that those were read to."""
        if not prefixes:
            return []
        assert self.traffic is not None
        block_of = {self.store.prefix(key): block for key, block in self.traffic._read.items()}
        return [block_of[prefix] for prefix in prefixes]

    def note_saves(self, step: Step, in_use: Counter[int]) -> None:
        """The manager may have copied to the host what it is going to write."""
        if self.traffic is None:
            return
        found = self.tree_blocks()
        targets = set(step.offloads)
        for prefix, (block, host_block) in found.items():
            entry = self.cached[prefix]
            if host_block is None:
                continue
            # A copy that made room for others may be made again, and get the same block.
            is_new = host_block in targets and entry.copied_by is None
            if host_block == entry.host_block and not is_new:
                continue
            assert host_block in targets
            assert block == entry.block
            assert entry.filled_by is None, "not computed yet"
            assert entry.num_uses >= self.min_uses
            assert entry.host_block is None or not in_use[entry.host_block]
            entry.host_block = host_block
            entry.copied_by = step.step_id
        self.note_host_drops(found, set(), in_use)

    def worth_saving(self) -> set[Prefix]:
        def is_worth_it(prefix: Prefix) -> bool:
            namespace, tokens = prefix
            ends = range(BLOCK_SIZE, len(tokens) + 1, BLOCK_SIZE)
            entries = [self.cached[namespace, tokens[:end]] for end in ends]
            return all(_is_worth_it(entry, self.min_uses) for entry in entries)

        return {prefix for prefix in self.cached if is_worth_it(prefix)}


def _is_worth_it(entry: Cached, min_uses: int) -> bool:
    return entry.num_uses >= min_uses or entry.host_block is not None
