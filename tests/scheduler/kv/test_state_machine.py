"""The block manager against a model of an engine that overlaps, drafts, fails, aborts, preempts.

The model knows what every slot of device and host memory holds and which prefixes are cached where,
pinned by whom and used when; a store below it writes, reads, fails and reports late. After every
rule the manager's whole state must agree with it.
"""

import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from support.kv_disk_rules import DiskRules, Store
from support.kv_model import (
    BLOCK_SIZE,
    NOT_SENT,
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
from taco_scheduler.kv.block_manager import BlockManager
from taco_scheduler.kv.namespace import CacheNamespace
from taco_scheduler.kv.node import NOWHERE, Node

NUM_BLOCKS = 24
MAX_SEQUENCES = 6
NAMESPACES = [CacheNamespace(), CacheNamespace(cache_salt="a"), CacheNamespace(adapter="a")]

token_ids = st.integers(0, 1)  # few, so that sequences meet
token_lists = st.lists(token_ids, min_size=1, max_size=6).map(tuple)
prompts = st.builds(lambda zeros, tail: (0,) * zeros + tail, st.integers(0, 12), token_lists)
picks = st.integers(0, 999)


class BlockManagerMachine(DiskRules, RuleBasedStateMachine):
    @initialize(
        num_host_blocks=st.sampled_from([0, 5, 20, 60]),
        num_disk_blocks=st.sampled_from([0, 6, 200]),
        min_uses=st.sampled_from([1, 1, 2]),
        max_cached=st.sampled_from([None, None, 12]),
        is_warm=st.booleans(),
        is_restarted=st.booleans(),
    )
    def start(
        self,
        num_host_blocks: int,
        num_disk_blocks: int,
        min_uses: int,
        max_cached: int | None,
        is_warm: bool,
        is_restarted: bool,
    ) -> None:
        self.num_host_blocks = num_host_blocks
        self.num_disk_blocks = num_disk_blocks
        self.min_uses = min_uses
        self.max_cached = max_cached
        self.history: list[tuple[CacheNamespace, Tokens]] = []
        self.clock = 0
        self.store = Store()
        self.attach_worker()
        if is_warm:
            for last in (0, 1, 1):
                tokens = (0,) * 8 + (last,) * 4 + (0,)
                self.admit(tokens, NAMESPACES[0], len(tokens), True)
                self.send_step({0}, len(tokens), (), 0, 0, True)
                self.confirm(1)
                self.release(self.live[0])
            self.squeeze(NUM_BLOCKS - 3, runs=True)
            if self.traffic is not None and is_restarted:
                self.flush()
                self.attach_worker()
                self.catch_up([True])

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
        on_device, on_host = self.longest_match(namespace, tokens) if read_cache else ([], [])
        num_matched = len(on_device) + len(on_host)
        on_read = self.match_read(namespace, tokens, num_matched) if read_cache else []
        matched = on_device + on_host + on_read
        num_new = max(len(matched), num_blocks_for(num_tokens)) - len(on_device)
        num_free = len(self.free_blocks())
        has_given_way = False
        while num_new + num_spare > num_free + len(self.unpinned() - set(on_device)):
            if not self.pins or not self.pins_could_help(num_new + num_spare):
                break
            self.end_pin(self.pins[0])
            has_given_way = True
        num_available = num_free + len(self.unpinned() - set(on_device))
        before, copied = self.snapshot(), self.host_copies()
        read_blocks = self.read_blocks(on_read)

        table = self.manager.allocate(
            pack(tokens), num_tokens, namespace, read_cache=read_cache, num_spare_blocks=num_spare
        )

        if num_new + num_spare > num_available:
            assert table is None
            assert has_given_way or self.snapshot() == before
            return
        assert table is not None
        assert table.num_cached_tokens == len(matched) * BLOCK_SIZE
        assert table.blocks[: len(on_device)] == [self.cached[each].block for each in on_device]
        sources = [self.host_block_of(prefix) for prefix in on_host] + read_blocks
        blocks = table.blocks[len(on_device) : len(matched)]
        for prefix, block, source in zip(on_host + on_read, blocks, sources, strict=True):
            entry = self.cached.setdefault(prefix, Cached(None))
            entry.block, entry.source, entry.filled_by = block, source, NOT_SENT
            if entry.host_block is None:
                entry.host_block = source
        for prefix in matched:
            self.cached[prefix].num_uses += 1
        num_loaded = len(sources)
        self.hits.update(device=len(on_device), host=num_loaded, missed=num_new - num_loaded)
        num_cached = len(matched)
        self.live.append(Sequence(namespace, tokens, table, num_cached, num_tokens, num_cached))
        self.note_evictions(max(0, num_new - num_free), copied, num_loaded)

    @precondition(lambda self: self.history and len(self.live) < MAX_SEQUENCES)
    @rule(pick=picks, cut=st.integers(0, 6), tail=st.just(()) | token_lists)
    def admit_again(self, pick: int, cut: int, tail: Tokens) -> None:
        """A preempted sequence comes back, or a conversation goes on."""
        namespace, tokens = self.history[pick % len(self.history)]
        tokens = tokens[: max(1, len(tokens) - cut)] + tail
        self.admit(tokens, namespace, len(tokens), True)

    @precondition(lambda self: len(self.live) < MAX_SEQUENCES and self.on_host_alone())
    @rule(pick=picks, tail=token_lists)
    def come_back(self, pick: int, tail: Tokens) -> None:
        """A conversation goes on of which the device holds no longer all."""
        prefixes = self.on_host_alone()
        namespace, tokens = prefixes[pick % len(prefixes)]
        self.admit(tokens + tail, namespace, len(tokens) + len(tail), True)

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
        emitted = (*drafts[:num_accepted], bonus)
        runnable = [s for i, s in enumerate(self.live) if i in batch and not s.is_sampling]
        plans = [self.plan(sequence, num_tokens, drafts, emitted) for sequence in runnable]
        step = Step(self.next_step_id, [plan for plan in plans if plan is not None], None)
        if not step.plans:
            return
        self.take_copies(step)
        for plan in step.plans:
            self.run(plan)
            if publish:
                self.publish(plan.sequence, step.step_id)
        self.in_flight.append(step)

    @precondition(lambda self: self.in_flight)
    @rule(count=st.integers(1, 3))
    def confirm(self, count: int) -> None:
        done, self.in_flight = self.in_flight[:count], self.in_flight[count:]
        last = done[-1].step_id
        self.manager.confirm(last)
        for entry in self.cached.values():
            if entry.filled_by is not None and entry.filled_by <= last:
                entry.filled_by = None
            if entry.copied_by is not None and entry.copied_by <= last:
                entry.copied_by = None
        for plan in chain.from_iterable(step.plans for step in done):
            sequence = plan.sequence
            sequence.num_computed += plan.num_tokens
            if plan.emitted:
                num_accepted = len(plan.emitted) - 1
                sequence.tokens += plan.emitted
                sequence.num_computed += num_accepted
                sequence.num_planned += num_accepted
                sequence.is_sampling = False

    @precondition(lambda self: self.in_flight)
    @rule(luck=st.sampled_from([0, 1, 1]))
    def fail_step(self, luck: int) -> None:
        """What was in flight never happened; whoever had a part in it or read of it starts anew."""
        if luck:  # a rule like others is chosen too often for much to happen in between
            return
        failed, self.in_flight = self.in_flight, []
        for step in failed:
            self.memory.fail(step)
        self.next_step_id = 0  # a new epoch

        self.manager.withdraw()

        self.forget(prefix for prefix, entry in self.cached.items() if entry.filled_by is not None)
        uncopied = [p for p, entry in self.cached.items() if entry.copied_by is not None]
        for prefix in uncopied:
            self.cached[prefix].host_block = self.cached[prefix].copied_by = None
        self.forget(prefix for prefix in uncopied if self.cached[prefix].block is None)
        for sequence in self.live:
            while sequence.num_pinned and sequence.pinned()[-1] not in self.cached:
                sequence.num_pinned -= 1
                sequence.sealed = True
        for pin in list(self.pins):
            if pin.prefixes()[-1] not in self.cached:
                self.end_pin(pin)
        affected = {plan.sequence for step in failed for plan in step.plans}
        for sequence in list(self.live):
            if sequence in affected or not self.has_valid_memory(sequence):
                self.release(sequence)

    @precondition(lambda self: self.live)
    @rule(pick=picks, comes_back=st.booleans())
    def end(self, pick: int, comes_back: bool) -> None:
        """Finish, abort or preemption, be a plan in flight or not."""
        self.release(self.live[pick % len(self.live)], comes_back=comes_back)

    @precondition(lambda self: self.history)
    @rule(
        pick=picks,
        cut=st.integers(0, 6),
        seconds=st.integers(1, 40),
        owner=st.sampled_from(["", "", "a", "b"]),
    )
    def pin(self, pick: int, cut: int, seconds: int, owner: str) -> None:
        """Somebody asks to keep the beginning of a prompt."""
        namespace, tokens = self.history[pick % len(self.history)]
        tokens = tokens[: len(tokens) - cut]
        until = self.clock + seconds
        is_pinned = self.manager.pin_prefix(pack(tokens), namespace, until, owner)
        pin = Pin(namespace, tokens[: len(tokens) // BLOCK_SIZE * BLOCK_SIZE], until, owner)
        while pin.tokens and any(not self.is_on_device(each) for each in pin.prefixes()):
            pin.tokens = pin.tokens[:-BLOCK_SIZE]
        for old in list(self.pins):
            if (old.namespace, old.tokens) == (pin.namespace, pin.tokens):
                pin.until = max(pin.until, old.until)
                self.end_pin(old)
        most = NUM_BLOCKS // 4 if owner else NUM_BLOCKS // 2
        assert is_pinned == (0 < pin.num_blocks <= most)
        if not is_pinned:
            return
        while pin.num_blocks + self.num_pinned_of(owner) > most:
            self.end_pin(next(each for each in self.pins if each.owner == owner))
        while pin.num_blocks + sum(each.num_blocks for each in self.pins) > NUM_BLOCKS // 2:
            held = [self.num_pinned_of(each.owner) for each in self.pins]
            self.end_pin(self.pins[held.index(max(held))])
        self.pins.append(pin)
        for prefix in pin.prefixes():
            self.cached[prefix].num_uses = max(self.cached[prefix].num_uses + 1, self.min_uses)

    @precondition(lambda self: self.pins)
    @rule(seconds=st.integers(0, 20))
    def expire(self, seconds: int) -> None:
        self.clock += seconds
        now = self.clock
        self.manager.expire(now)
        for pin in list(self.pins):
            if pin.until <= now:
                self.end_pin(pin)

    @precondition(lambda self: self.cached)
    @rule(num_blocks=st.integers(1, NUM_BLOCKS), runs=st.sampled_from([True, True, False]))
    def squeeze(self, num_blocks: int, runs: bool) -> None:
        """A prompt that nobody shares comes and goes, be it that a step has run for it or not."""
        num_live = len(self.live)
        self.admit((2,), NAMESPACES[0], num_blocks * BLOCK_SIZE, False)
        if len(self.live) > num_live:
            if runs:
                self.send_step({num_live}, 1, (), 0, 0, publish=False)
                self.confirm(len(self.in_flight))
            self.release(self.live[-1])

    @precondition(lambda self: len(self.cached) > NUM_BLOCKS // 2)
    @rule()
    def lose_worker(self) -> None:
        """Its blocks go with it, those of the host too; the next worker's are managed anew."""
        for sequence in list(self.live):
            self.release(sequence)
        self.end_all_pins()
        assert self.manager.num_free_blocks == NUM_BLOCKS
        self.attach_worker()

    def teardown(self) -> None:
        """Idle, every block is free or cached; evicting all frees all."""
        if not hasattr(self, "manager"):
            return
        for sequence in list(self.live):
            self.release(sequence)
        self.end_all_pins()
        if self.traffic is not None:
            if self.in_flight:
                self.confirm(len(self.in_flight))
            self.flush()
        assert self.manager.num_free_blocks == NUM_BLOCKS
        assert self.manager.usage == 0
        self.squeeze(NUM_BLOCKS, runs=False)
        assert self.manager._pool.num_free == NUM_BLOCKS
        if not self.num_host_blocks:
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
        owners.update(entry.block for entry in self.cached.values() if entry.block is not None)
        assert self.manager._pool._references == [owners[block] for block in range(NUM_BLOCKS)]

    @invariant()
    def host_references_are_owners(self) -> None:
        host = self.manager._host
        if host is None:
            return
        loading = {e.block: e.source for e in self.cached.values() if e.filled_by == NOT_SENT}
        loading.pop(None, None)  # what was evicted before it was loaded
        assert host._loads == loading
        owners = self.host_copies()
        owners.update(e.host_block for e in self.cached.values() if e.host_block is not None)
        assert host._pool._references == [owners[block] for block in range(self.num_host_blocks)]
        free = host._pool._free
        assert len(free) == len(set(free))
        assert set(free) == set(range(self.num_host_blocks)) - set(owners)
        assert self.manager.num_used_host_blocks == self.num_host_blocks - len(free)

    @invariant()
    def tree_holds_what_the_model_cached(self) -> None:
        assert self.tree_blocks() == {
            prefix: (entry.block, entry.host_block) for prefix, entry in self.cached.items()
        }

    @invariant()
    def cached_blocks_hold_their_tokens(self) -> None:
        host = self.manager._host
        for prefix, entry in self.cached.items():
            contents = contents_of(prefix)
            if entry.block is not None:
                assert self.device_contents(entry.block) == contents
            if entry.host_block is not None:
                assert host is not None
                assert host.is_readable(entry.host_block) == (entry.copied_by is None)
                if entry.copied_by == NOT_SENT:
                    assert self.memory.device[host._offloads[entry.host_block]] == contents
                else:
                    assert self.memory.host[entry.host_block] == contents

    @invariant()
    def tree_is_well_formed(self) -> None:
        locks = Counter(self.locked())
        assert self.manager._pins.num_blocks == sum(pin.num_blocks for pin in self.pins)
        tree = self.manager._tree
        nodes, unlocked, below = set(), set(), set()
        for namespace, tokens, node in self.nodes():
            assert node.num_blocks > 0
            assert len(node.key) == node.num_blocks * tree.block_bytes
            assert len(node.host_blocks) in (0, node.num_blocks)
            assert node.parent is not None
            assert node.parent.children[bytes(node.key[: tree.block_bytes])] is node
            assert not (node.blocks and node.parent.num_below)
            start = len(tokens) - node.num_blocks * BLOCK_SIZE
            for end in range(start + BLOCK_SIZE, len(tokens) + 1, BLOCK_SIZE):
                assert node.lock_count == locks[namespace, tokens[:end]]
                num_uses = self.cached[namespace, tokens[:end]].num_uses
                assert node.num_uses == min(num_uses, self.min_uses)
            if node.lock_count == 0 and node.blocks:
                unlocked.add(node)
            if node.num_below:
                assert node.lock_count == 0
                below.add(node)
            nodes.add(node)
        assert set(tree._lru) == unlocked
        if tree.residents is not None:
            assert set(tree.residents.offloaded) == below
            assert set(tree.residents._duplicated) <= nodes
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

    @invariant()
    def hits_are_counted(self) -> None:
        hits = self.manager.hits
        assert (hits.device, hits.host, hits.missed) == (
            self.hits["device"],
            self.hits["host"],
            self.hits["missed"],
        )

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
        return NOWHERE if block is None else block

    def is_offloaded_now(self, block: int | None, host_block: int | None) -> bool:
        host = self.manager._host
        return host is not None and (host_block, block) in host._offloads.items()

    def on_host_alone(self) -> list[Prefix]:
        return [prefix for prefix, entry in self.cached.items() if entry.block is None]

    def num_pinned_of(self, owner: str) -> int:
        return sum(pin.num_blocks for pin in self.pins if pin.owner == owner)

    def pins_could_help(self, num_blocks: int) -> bool:
        num_pinned = sum(pin.num_blocks for pin in self.pins)
        return num_blocks <= len(self.free_blocks()) + len(self.unpinned()) + num_pinned

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
        has_given_way = False
        while num_new > num_free + len(self.unpinned()) and self.pins:
            if not self.pins_could_help(num_new):
                break
            self.end_pin(self.pins[0])
            has_given_way = True
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
            host = node.host_blocks or [NOWHERE] * node.num_blocks
            for i, blocks in enumerate(zip(device, host, strict=True), 1):
                block, host_block = blocks
                prefix = namespace, tokens[: start + i * BLOCK_SIZE]
                found[prefix] = block, None if host_block == NOWHERE else host_block
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
            list(manager._tree.residents.offloaded) if manager._tree.residents else [],
            host and (list(host._pool._references), dict(host._offloads), dict(host._loads)),
            [(each.table.blocks.copy(), each.table.node) for each in self.live],
        )


BlockManagerMachine.TestCase.settings = settings(
    max_examples=500, stateful_step_count=100, deadline=None
)
TestBlockManager = BlockManagerMachine.TestCase
