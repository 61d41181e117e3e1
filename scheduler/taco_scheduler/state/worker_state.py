"""What the engine knows of the worker that is attached; all of it is lost with the worker."""

from collections.abc import Iterator

from taco_proto.config import SchedulerConfig
from taco_proto.steps import WorkerInfo
from taco_scheduler.core.stop import StopChecker
from taco_scheduler.kv.block_manager import BlockManager
from taco_scheduler.state.batch import Batch
from taco_scheduler.state.in_flight import InFlight, InFlightStep
from taco_scheduler.state.sequence import Sequence


class WorkerState:
    """One worker's slots, blocks and steps in flight.

    Attributes:
        max_num_batched_tokens: token budget of a step: the scheduler's or the worker's, whichever
            is less.
        landing: preempted sequences that wait for outputs of steps they are in, by tenure.
    """

    def __init__(self, info: WorkerInfo, config: SchedulerConfig) -> None:
        budget = min(config.max_num_batched_tokens, info.max_num_batched_tokens)
        # Every running sequence gets at least a token a step: no more slots than the budget.
        num_slots = min(config.max_num_seqs, info.max_num_seqs, budget)
        self.max_num_batched_tokens = budget
        self.info = info
        self.batch = Batch(num_slots)
        self.blocks = BlockManager(
            info.num_blocks,
            info.block_size,
            enable_prefix_caching=config.enable_prefix_caching,
            num_host_blocks=info.num_host_blocks,
            num_disk_blocks=info.num_disk_blocks,
            offload_min_accesses=config.offload_min_accesses,
            max_cached_device_blocks=config.max_cached_device_blocks,
            max_pinned_share=config.max_pinned_share,
            log_hit_counts=config.log_hit_counts,
        )
        self.stops = StopChecker(info.vocab_size, info.eos_token_ids)
        self.in_flight = InFlight()
        self.preempted: dict[int, Sequence] = {}

    def release(self, sequence: Sequence, *, swaps: bool = False) -> None:
        """Takes slot and blocks away from a running sequence.

        Its full blocks stay cached, but for what steps in flight compute: that may still fail.

        Args:
            swaps: they go to the host tier when the device gives them up.
        """
        assert sequence.table is not None
        num_computed = int(self.batch.num_computed[sequence.slot])
        num_valid = num_computed - self.in_flight.num_unconfirmed_tokens(sequence.slot_generation)
        tokens = memoryview(
            sequence.tokens
        )  # no copy: only blocks that are not cached yet are read
        self.blocks.release(sequence.table, tokens, num_valid, comes_back=swaps)
        self.batch.leave(sequence)

    def release_all(self) -> list[Sequence]:
        """Starts over: empties the batch and forgets all steps; returns whom that concerns."""
        running = list(self.batch.running())
        for sequence in running:
            self.release(sequence)
        concerned = running + list(self.preempted.values())
        self.preempted.clear()
        self.in_flight.steps.clear()
        self.batch.left_slots.clear()
        return concerned

    def sequences_in(self, step: InFlightStep) -> Iterator[Sequence]:
        """Those that a step in flight runs for, unless they have ended."""
        for slot, generation in zip(step.slots.tolist(), step.generations.tolist(), strict=True):
            if self.batch.slot_generation[slot] == generation:
                yield self.batch.owner(slot)
            elif generation in self.preempted:
                yield self.preempted[generation]
