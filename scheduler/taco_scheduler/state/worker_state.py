"""The scheduler's state of one worker: its batch, blocks and steps in flight.

All of it is lost with the worker.
"""

from collections.abc import Iterator

from taco_proto.config import SchedulerConfig
from taco_proto.steps import WorkerInfo
from taco_scheduler.kv.block_manager import BlockManager
from taco_scheduler.kv.recurrent_block_manager import RecurrentBlockManager
from taco_scheduler.state.batch import Batch
from taco_scheduler.state.batch_limits import batch_limits
from taco_scheduler.state.in_flight import InFlight, InFlightStep
from taco_scheduler.state.sequence import Sequence


def _new_blocks(info: WorkerInfo, config: SchedulerConfig) -> BlockManager:
    if info.is_recurrent and info.num_state_snapshots and config.enable_prefix_caching:
        return RecurrentBlockManager(
            info.num_blocks,
            info.block_size,
            info.num_state_snapshots,
            max_cached_device_blocks=config.max_cached_device_blocks,
            max_pinned_share=config.max_pinned_share,
            log_hit_counts=config.log_hit_counts,
        )
    return BlockManager(
        info.num_blocks,
        info.block_size,
        enable_prefix_caching=config.enable_prefix_caching and not info.is_recurrent,
        num_host_blocks=info.num_host_blocks,
        num_disk_blocks=info.num_disk_blocks,
        offload_min_accesses=config.offload_min_accesses,
        max_cached_device_blocks=config.max_cached_device_blocks,
        max_pinned_share=config.max_pinned_share,
        log_hit_counts=config.log_hit_counts,
    )


class WorkerState:
    """One worker's slots, blocks and steps in flight.

    Attributes:
        limits: of the batch.
        preempted: preempted sequences with outputs in flight, by slot generation.
    """

    def __init__(self, info: WorkerInfo, config: SchedulerConfig) -> None:
        self.info = info
        self.limits = batch_limits(info, config)
        self.batch = Batch(self.limits.max_num_seqs)
        self.blocks = _new_blocks(info, config)
        self.in_flight = InFlight()
        self.preempted: dict[int, Sequence] = {}

    def release(self, sequence: Sequence, *, swaps: bool = False) -> None:
        """Take slot and blocks away from a running sequence.

        Its full blocks stay cached, except those that steps in flight compute: these steps may
        still fail.

        Args:
            swaps: the cached blocks go to the host tier when the device evicts them.
        """
        assert sequence.table is not None
        num_computed = int(self.batch.num_computed[sequence.slot])
        num_valid = num_computed - self.in_flight.num_unconfirmed_tokens(sequence.slot_generation)
        tokens = memoryview(sequence.tokens)  # no copy: `release` reads only uncached blocks
        self.blocks.release(sequence.table, tokens, num_valid, comes_back=swaps)
        self.batch.leave(sequence)

    def release_all(self) -> list[Sequence]:
        """Empty the batch and forget all steps; returns the sequences that were on the worker."""
        running = list(self.batch.running())
        for sequence in running:
            self.release(sequence)
        released = running + list(self.preempted.values())
        self.preempted.clear()
        self.in_flight.steps.clear()
        self.batch.left_slots.clear()
        return released

    def owner(self, slot: int, generation: int) -> Sequence | None:
        """The sequence that a step ran for, running or preempted; None if it has ended."""
        if self.batch.slot_generation[slot] == generation:
            return self.batch.owner(slot)
        return self.preempted.get(generation)

    def sequences_in(self, step: InFlightStep) -> Iterator[Sequence]:
        """The sequences that a step in flight runs for and that have not ended."""
        for slot, generation in zip(step.slots.tolist(), step.generations.tolist(), strict=True):
            sequence = self.owner(slot, generation)
            if sequence is not None:
                yield sequence
