"""The block manager against a model of an engine that overlaps, drafts, fails, aborts, preempts.

The model knows what every slot of device and host memory holds and which prefixes are cached where,
pinned by whom and used when; a store below it writes, reads, fails and reports late. After every
rule the manager's whole state must agree with it.
"""

from itertools import chain

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
)

from support.kv_disk_rules import DiskRules
from support.kv_invariants import KvInvariants
from support.kv_model import (
    BLOCK_SIZE,
    NOT_SENT,
    NUM_BLOCKS,
    Cached,
    Pin,
    Sequence,
    Step,
    Tokens,
    num_blocks_for,
    pack,
)
from support.kv_store import Store
from taco_scheduler.kv.namespace import CacheNamespace

pytestmark = pytest.mark.slow

MAX_SEQUENCES = 6
NAMESPACES = [CacheNamespace(), CacheNamespace(cache_salt="a"), CacheNamespace(adapter="a")]

token_ids = st.integers(0, 1)  # few, so that sequences meet
token_lists = st.lists(token_ids, min_size=1, max_size=6).map(tuple)
prompts = st.builds(lambda zeros, tail: (0,) * zeros + tail, st.integers(0, 12), token_lists)
picks = st.integers(0, 999)


class BlockManagerMachine(KvInvariants, DiskRules, RuleBasedStateMachine):
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
        has_given_way = self.give_way(num_new + num_spare, on_device)
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
        assert list(table.blocks[: len(on_device)]) == [
            self.cached[each].block for each in on_device
        ]
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
        """A preempted sequence or a conversation continues."""
        namespace, tokens = self.history[pick % len(self.history)]
        tokens = tokens[: max(1, len(tokens) - cut)] + tail
        self.admit(tokens, namespace, len(tokens), True)

    @precondition(lambda self: len(self.live) < MAX_SEQUENCES and self.on_host_alone())
    @rule(pick=picks, tail=token_lists)
    def come_back(self, pick: int, tail: Tokens) -> None:
        """A conversation continues whose blocks the device has partly evicted."""
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
        """A step fails: every sequence that ran in it or read its blocks starts anew."""
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
        """A prompt without common prefix comes and ends, with or without a step."""
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


BlockManagerMachine.TestCase.settings = settings(
    max_examples=500, stateful_step_count=100, deadline=None
)
TestBlockManager = BlockManagerMachine.TestCase


def compute(machine: BlockManagerMachine, tokens: Tokens) -> None:
    """Run a prompt in one step, which also copies earlier prompts to the host."""
    machine.admit(tokens, NAMESPACES[0], len(tokens), True)
    machine.send_step({len(machine.live) - 1}, len(tokens), (), 0, 0, True)
    machine.confirm(1)


def machine_with_copies() -> BlockManagerMachine:
    """A machine with a disk tier whose host tier holds the four blocks of a prompt."""
    machine = BlockManagerMachine()
    machine.start(20, 200, 1, None, is_warm=False, is_restarted=False)
    machine.catch_up([True])
    compute(machine, (0,) * 9)
    compute(machine, (1,))
    return machine


def test_a_flush_writes_blocks_again_whose_earlier_write_failed() -> None:
    machine = machine_with_copies()
    machine.send_commands()
    machine.work(4, [True, False])
    compute(machine, (1,))
    assert machine.store.reports, "the scheduler does not know of the failure"
    machine.teardown()
    assert len(machine.store.files) == 4


def test_a_flush_writes_blocks_again_whose_file_cannot_be_read() -> None:
    machine = machine_with_copies()
    machine.catch_up([True])
    machine.attach_worker()
    machine.catch_up([True])
    first, *_, last = range(len(machine.store.files))
    machine.read_ahead(last, 0, is_worth_it=True, waits=False)
    machine.send_commands()
    machine.mishap("damage", first)
    compute(machine, (0,) * 9)
    assert machine.store.jobs, "the read is not done"
    machine.teardown()
    assert len(machine.store.files) == 4
