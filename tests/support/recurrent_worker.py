"""A fake worker of a recurrent model: it knows which tokens each state and snapshot holds.

A state is the tokens that it was computed from, with their adapter and salt. So a sequence that
continues from the state of another position, or of another prefix, is found at once.
"""

from dataclasses import dataclass

from support.engine_driver import Driver, Peer
from support.fake_worker import FakeWorker, require, worker_info
from taco_proto.steps import JoinedSequences, StepOutput, StepPlan, WorkerInfo
from taco_scheduler.kv.radix_node import Node
from taco_scheduler.kv.recurrent_block_manager import RecurrentBlockManager
from taco_scheduler.kv.sequence_snapshots import NO_SNAPSHOT

State = tuple[str, str, tuple[int, ...]]  # adapter, salt, tokens


def recurrent_info(**changes: object) -> WorkerInfo:
    values: dict[str, object] = {
        "is_recurrent": True,
        "num_state_snapshots": 16,
        "drafts_itself": False,
    }
    return worker_info(**{**values, **changes})


@dataclass
class RecurrentWorker(FakeWorker):
    """Checks the contract of `state_snapshots` and of the saved states in every plan.

    Attributes:
        states: by slot.
        snapshots: by number; None: a failed step has left garbage there.
        num_continued: sequences that have continued from a snapshot.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.states: dict[int, State] = {}
        self.snapshots: dict[int, State | None] = {}
        self.num_continued = 0

    def execute(self, plan: StepPlan) -> StepOutput:
        if plan.epoch == self.failed_epoch:
            return super().execute(plan)
        if plan.epoch != self.epoch:
            self.states.clear()
        require(plan.max_drafts.size == 0, "a recurrent state does not roll back")
        require(plan.copies is None, "there is no other tier")
        saves = self._saves(plan)
        output = super().execute(plan)
        for slot, count in zip(plan.slots.tolist(), plan.num_tokens.tolist(), strict=True):
            adapter, salt, before = self.states[slot]
            # The row has computed these tokens: in a failed step, the tokens are still known.
            tokens = (*before, *self.rows[slot].tokens[len(before) : len(before) + count])
            self.states[slot] = (adapter, salt, tokens)
            if slot in saves:
                position, snapshot = saves[slot]
                require(len(before) < position <= len(before) + count, "not a position of the row")
                saved = (adapter, salt, tokens[:position])
                self.snapshots[snapshot] = None if output.error else saved
        require(not saves.keys() - set(plan.slots.tolist()), "a slot saves that does not run")
        return output

    def _saves(self, plan: StepPlan) -> dict[int, tuple[int, int]]:
        """Position and snapshot by slot."""
        columns = (plan.saved_slots, plan.saved_positions, plan.saved_snapshots)
        slots, positions, snapshots = (column.tolist() for column in columns)
        require(len(set(slots)) == len(slots), "a slot saves two states")
        require(len(set(snapshots)) == len(snapshots), "a snapshot is written twice")
        require(all(0 <= s < self.info.num_state_snapshots for s in snapshots), "no such snapshot")
        require(all(p % self.info.block_size == 0 for p in positions), "not the end of a block")
        if plan.joined is not None:
            read = set(plan.joined.state_snapshots.tolist())
            require(not read & set(snapshots), "a snapshot is read and written")
        return dict(zip(slots, zip(positions, snapshots, strict=True), strict=True))

    def _join(self, joined: JoinedSequences) -> None:
        super()._join(joined)
        snapshots = joined.state_snapshots.tolist() or [-1] * len(joined.slots)
        for i, (slot, snapshot) in enumerate(zip(joined.slots.tolist(), snapshots, strict=True)):
            row = self.rows[slot]
            adapter = joined.adapters[i] if joined.adapters else ""
            salt = joined.cache_salts[i] if joined.cache_salts else ""
            wanted: State = (adapter, salt, tuple(row.tokens[: row.num_computed]))
            require((snapshot >= 0) == (row.num_computed > 0), "a state is missing, or not needed")
            if snapshot >= 0:
                require(self.snapshots.get(snapshot) == wanted, "the state of another prefix")
                self.num_continued += 1
            self.states[slot] = wanted


class RecurrentDriver(Driver):
    """A driver whose workers have recurrent models."""

    def __init__(self, info: WorkerInfo | None = None, **config: object) -> None:
        super().__init__(info or recurrent_info(), **config)

    def attach(self, info: WorkerInfo | None = None) -> Peer:
        worker = RecurrentWorker(info or self.info, self.config.max_num_batched_tokens)
        peer = Peer(worker, self.engine.attach(worker.info))
        self.peers.append(peer)
        return peer


def check_snapshots(manager: RecurrentBlockManager) -> None:
    """Each snapshot is free, or at one position of the tree, or pending in one block table."""
    pool = manager.snapshots
    cached: dict[int, Node] = {}
    nodes: list[Node] = list(manager._tree._roots.values())
    while nodes:
        node = nodes.pop()
        nodes += node.children.values()
        assert all(1 <= index <= node.num_blocks for index in node.snapshots)
        for snapshot in node.snapshots.values():
            assert snapshot not in cached, "two positions have one snapshot"
            cached[snapshot] = node
    pending = [
        table.states.pending
        for table in manager._live
        if table.states is not None and table.states.pending != NO_SNAPSHOT
    ]
    unused = range(pool._num_ever_used, pool.num_snapshots)
    everything = [*pool._free, *unused, *cached, *pending]
    assert sorted(everything) == list(range(pool.num_snapshots))
    assert dict(pool._nodes) == cached
    assert set(pool._unconfirmed) <= {*cached, *pending}
    assert pool.num_used == len(cached) + len(pending)
    assert pool.num_pending == len(pending)
