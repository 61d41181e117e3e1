"""The disk tier in the block manager's state machine: a store that works, fails and reports late.

What the manager's own map of the files says is checked for sense, against what the store holds.
"""

from collections import Counter
from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from support.kv_model import BLOCK_SIZE, Step, contents_of, pack
from support.kv_shadow import KvShadow
from taco_proto.kv_tiers import StoreCommand, StoreReport

MAX_FLUSH_ROUNDS = 500
UNKNOWN = bytes(range(16))  # a key that was never written

picks = st.integers(0, 999)


class DiskRules(KvShadow):
    """To be mixed into the machine, whose these methods are."""

    admit: Callable[..., None]
    confirm: Callable[[int], None]

    # ------------------------------------------------------------------ rules

    @precondition(lambda self: self.traffic)
    @rule()
    def send_commands(self) -> None:
        while (command := self.manager.disk.next_command()) is not None:
            self.store.take(command)

    @precondition(lambda self: self.traffic and self.store.jobs)
    @rule(count=st.integers(1, 12), luck=st.lists(st.booleans(), min_size=1, max_size=3))
    def work(self, count: int, luck: list[bool]) -> None:
        """The store does some of its jobs, of which some fail; it says so in one report."""
        jobs, self.store.jobs = self.store.jobs[:count], self.store.jobs[count:]
        done: dict[str, list[bytes]] = {"write": [], "read": [], "failed": []}
        for i, (kind, key, host_block) in enumerate(jobs):
            if kind == "delete":
                self.store.files.pop(key, None)
                self.store.damaged.discard(key)
            elif self.do(kind, key, host_block, is_lucky=luck[i % len(luck)]):
                done[kind].append(key)
            else:
                self.store.files.pop(key, None)
                self.store.damaged.discard(key)
                done["failed"].append(key)
        written, read, failed = map(tuple, done.values())
        if written or read or failed:
            self.store.reports.append(StoreReport(written=written, read=read, failed=failed))

    def do(self, kind: str, key: bytes, host_block: int, *, is_lucky: bool) -> bool:
        """One write or read; False if it failed."""
        store = self.store
        if kind == "write":
            contents = self.memory.host[host_block]
            assert contents == contents_of(store.prefix(key)), "what is written was overwritten"
            if is_lucky:
                store.files[key] = list(contents)
                store.damaged.discard(key)
            return is_lucky
        if key not in store.files or key in store.damaged or not is_lucky:
            self.memory.host[host_block] = [None] * BLOCK_SIZE
            return False
        self.memory.host[host_block] = list(store.files[key])
        return True

    @precondition(lambda self: self.traffic and self.store.reports)
    @rule(count=st.integers(1, 3))
    def report(self, count: int) -> None:
        arrived, self.store.reports = self.store.reports[:count], self.store.reports[count:]
        for each in arrived:
            self.manager.disk.take(each)

    @precondition(lambda self: self.traffic)
    @rule(luck=st.sampled_from([[True], [True], [True, False]]))
    def catch_up(self, luck: list[bool]) -> None:
        """The store does all that there is to do, and everybody knows."""
        self.send_commands()
        if self.store.jobs:
            self.work(len(self.store.jobs), luck)
        if self.store.reports:
            self.report(len(self.store.reports))

    @precondition(lambda self: self.traffic and self.tier.is_known)
    @rule(kind=st.sampled_from(["written", "read", "failed", "damage", "damage"]), pick=picks)
    def mishap(self, kind: str, pick: int) -> None:
        """A file is damaged, or a report names an unknown key."""
        if kind != "damage":
            report = StoreReport(**{kind: (UNKNOWN,)})  # type: ignore[arg-type]
            self.manager.disk.take(report)
        elif self.store.files:
            files = list(self.store.files)
            self.store.damaged.add(files[pick % len(files)])

    @precondition(lambda self: self.traffic and self.store.files)
    @rule(
        pick=picks,
        tail=st.integers(0, 1),
        is_worth_it=st.sampled_from([True, True, False]),
        waits=st.booleans(),
    )
    def read_ahead(self, pick: int, tail: int, is_worth_it: bool, waits: bool) -> None:
        """Continues a conversation of which the disk may hold the longest prefix."""
        files = list(self.store.files)
        namespace, tokens = self.store.prefix(files[pick % len(files)])
        in_use = self.host_copies()
        self.manager.read_ahead(pack((*tokens, tail)), namespace, lambda *_: is_worth_it)
        self.note_host_drops(self.tree_blocks(), set(), in_use)
        if waits:
            self.catch_up([True])

    @precondition(lambda self: self.traffic and self.traffic._read)
    @rule(pick=picks, tail=st.integers(0, 1))
    def come_back_from_disk(self, pick: int, tail: int) -> None:
        assert self.traffic is not None
        keys = list(self.traffic._read)
        namespace, tokens = self.store.prefix(keys[pick % len(keys)])
        self.admit((*tokens, tail), namespace, len(tokens) + 1, True)

    def flush(self) -> None:
        """Every cached block that is worth saving is written to disk if there is room."""
        self.manager.flush()
        for _ in range(MAX_FLUSH_ROUNDS):
            if self.manager.disk.is_flushed:
                break
            self.catch_up([True])
            self.next_step_id += 1
            step = Step(self.next_step_id, [], None)
            self.take_copies(step)
            self.in_flight.append(step)
            self.confirm(1)
        assert self.manager.disk.is_flushed
        if self.num_disk_blocks > len(self.store.names):
            stored = {self.store.prefix(key) for key in self.store.files}
            assert self.worth_saving() <= stored

    # -------------------------------------------------------------- invariants

    @invariant()
    def files_are_closed_under_prefixes(self) -> None:
        if self.traffic is None:
            return
        tier = self.tier
        assert len(tier._files) <= max(self.num_disk_blocks, 1)
        children = Counter[bytes]()
        for key, file in tier._files.items():
            assert file.key == key
            if file.parent is None:
                assert tier._firsts[file.block.adapter, file.block.cache_salt, file.block.token_ids]
            else:
                assert tier._files[file.parent.key] is file.parent
                assert file.parent.children[file.block.token_ids] is file
                children[file.parent.key] += 1
        assert len(tier._firsts) == sum(file.parent is None for file in tier._files.values())
        for key, file in tier._files.items():
            assert len(file.children) == children[key]

    @invariant()
    def files_that_count_are_there(self) -> None:
        """Or it is on its way that they are not."""
        if self.traffic is None:
            return
        failed = {key for report in self.store.reports for key in report.failed}
        under_way = {key for kind, key, _ in self.store.jobs if kind == "delete"}
        for key, file in self.tier._files.items():
            if file.is_written and key not in failed | under_way:
                assert self.store.files[key] == contents_of(self.store.prefix(key))

    @invariant()
    def jobs_are_those_that_are_waited_for(self) -> None:
        if self.traffic is None:
            return
        for kind, waited in (("write", self.tier._writing), ("read", self.tier._reading)):
            jobs = {key for each, key, _ in self.store.jobs if each == kind}
            done = {key for report in self.store.reports for key in _keys_of(report)}
            commands = {key for each in self.tier._commands for key in _jobs_of(each)[kind]}
            assert jobs <= waited.keys()
            assert waited.keys() <= jobs | done | commands

    @invariant()
    def what_was_read_is_what_was_written(self) -> None:
        if self.traffic is not None:
            for key, host_block in self.traffic._read.items():
                assert self.memory.host[host_block] == contents_of(self.store.prefix(key))


def _keys_of(report: StoreReport) -> tuple[bytes, ...]:
    return report.written + report.read + report.failed


def _jobs_of(command: StoreCommand) -> dict[str, list[bytes]]:
    return {
        "write": [block.key for _, block in command.writes],
        "read": [key for key, _ in command.reads],
    }
