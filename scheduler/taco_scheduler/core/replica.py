"""A replica: one attached worker with its queue, its load and its step loop."""

from collections.abc import Iterator

from taco_proto.config import SchedulerConfig
from taco_proto.registry import DECODE_TOKENS
from taco_proto.requests import FinishReason
from taco_proto.steps import WorkerInfo
from taco_scheduler.admission.validation import length_limit
from taco_scheduler.core.grammar_gate import GrammarGate
from taco_scheduler.core.pending_prefixes import PendingPrefixes
from taco_scheduler.core.request_registry import RequestRegistry
from taco_scheduler.core.step_loop import StepLoop
from taco_scheduler.faults.worker_loss import LostRequests, release_lost_worker
from taco_scheduler.queue.waiting_queue import WaitingQueue
from taco_scheduler.speculation.speculation import Speculation
from taco_scheduler.state.counters import Counters
from taco_scheduler.state.sequence import Request, Sequence, Status
from taco_scheduler.state.worker_state import WorkerState


class Replica:
    """The scheduler's view of one worker: which requests wait and run there.

    Attributes:
        name: unique among the attached workers.
        license: whether the worker may take new requests.
        drain_deadline: when a draining worker leaves at the latest; None: it does not drain.
        worker: slots, blocks and steps in flight.
        steps: plans the worker's steps and commits their outputs.
        waiting: the sequences that wait for a slot here.
        speculation: the drafts of its sequences.
        grammars: the grammars of its sequences.
    """

    def __init__(
        self,
        info: WorkerInfo,
        name: str,
        config: SchedulerConfig,
        requests: RequestRegistry,
        counters: Counters,
        epochs: Iterator[int],
        step_ids: Iterator[int],
        *,
        detects_stalls: bool,
    ) -> None:
        """See `StepLoop` for the arguments."""
        self.name = name
        self.license = info.license
        self.drain_deadline: float | None = None
        self.worker = WorkerState(info, config)
        self.waiting = WaitingQueue(requests.fair_share)
        self.speculation = Speculation(self.worker, config, counters, requests.__len__)
        self.grammars = GrammarGate()
        self.steps = StepLoop(
            name,
            self.worker,
            self.waiting,
            self.speculation,
            config,
            requests,
            counters,
            epochs,
            step_ids,
            waiting_gates=(self.grammars.known,),
            sampling_gates=(self.grammars,),
            detects_stalls=detects_stalls,
        )
        self._pending_prefixes = PendingPrefixes(
            self.worker.blocks.block_bytes, info.block_size, is_recurrent=info.is_recurrent
        )

    # ------------------------------------------------------------------- state

    @property
    def info(self) -> WorkerInfo:
        return self.worker.info

    @property
    def num_running(self) -> int:
        return self.worker.batch.num_running

    @property
    def kv_usage(self) -> float:
        """Active part of the device's blocks, 0 to 1."""
        return self.worker.blocks.usage

    @property
    def num_pinned_blocks(self) -> int:
        return self.worker.blocks.num_pinned_blocks

    @property
    def num_used_snapshots(self) -> int:
        return self.worker.blocks.num_used_snapshots

    @property
    def is_draining(self) -> bool:
        return self.drain_deadline is not None

    @property
    def accepts_requests(self) -> bool:
        """Whether new requests may come; a request that has begun may come in any case."""
        return self.license.is_valid and not self.is_draining

    def is_drained(self, now: float) -> bool:
        """Whether a draining worker may leave.

        Its last request has ended and its prefixes are on disk, or its time is up.
        """
        if self.drain_deadline is None:
            return False
        is_saved = self.steps.is_empty and self.worker.blocks.disk.is_flushed
        return is_saved or now >= self.drain_deadline

    @property
    def has_spare_capacity(self) -> bool:
        """Whether the worker could start more requests than wait for it."""
        has_slot = self.worker.batch.num_free_slots > 0 and self.accepts_requests
        return has_slot and not self.waiting.num_sequences and self.can_plan

    @property
    def can_plan(self) -> bool:
        """Whether a step may be planned: fewer than the maximum are in flight."""
        return not self.steps.is_full

    @property
    def can_act(self) -> bool:
        """Whether there may be a step to plan, or a command for the disk tier."""
        return self.can_plan or self.worker.blocks.disk.exists

    def deadlines(self) -> tuple[float | None, ...]:
        """When the engine has to look at this replica even if no message comes."""
        return (
            self.speculation.client.deadline(),
            self.stall_deadline(),
            self.drain_deadline,
            self.steps.disk_deadline(),
        )

    def stall_deadline(self) -> float | None:
        """When the worker counts as lost unless it answers; None: it owes no answer."""
        return self.steps.stall_deadline()

    # -------------------------------------------------------------------- load

    @property
    def load(self) -> int:
        """Estimated work, in prompt tokens."""
        batch = self.worker.batch
        missing = (batch.num_prefill - batch.num_computed)[batch.limit > 0]
        running = int(missing.clip(0).sum()) + DECODE_TOKENS * batch.num_running
        return running + self.queued_load

    @property
    def queued_load(self) -> int:
        """The part of `load` that waits."""
        return self.waiting.num_tokens + DECODE_TOKENS * self.waiting.num_sequences

    def num_missing_tokens(self, sequence: Sequence) -> int:
        """Tokens of a sequence that this worker would compute.

        Tokens in the prefix cache, and those that another sequence here computes first, are not
        missing.
        """
        num_tokens = len(sequence.tokens)
        blocks = self.worker.blocks
        if sequence.computes_prompt_logprobs or not blocks.enable_prefix_caching:
            return num_tokens
        num_cached = blocks.num_cached_tokens(sequence.pack(), sequence.request.namespace)
        return num_tokens - max(num_cached, self._pending_prefixes.num_common_tokens(sequence))

    # ------------------------------------------------------------------- queue

    def attach(self, request: Request, *, is_choice: bool = True) -> None:
        """Queue an unassigned request here.

        Args:
            is_choice: other replicas exist; the tokens to compute are counted for the router then.
        """
        request.replica = self
        request.accepted = True
        for sequence in request.unfinished:
            self.add(sequence)
            if sequence.status is Status.WAITING:
                num_missing = self.num_missing_tokens(sequence) if is_choice else None
                self.waiting.push(sequence, num_missing)
                if is_choice:
                    self._pending_prefixes.add(sequence)

    def add(self, sequence: Sequence) -> None:
        """Record a new sequence of a request that is attached here, until it is released."""
        self.grammars.add(sequence)

    def enqueue(self, sequence: Sequence) -> None:
        """Queue a sequence of a request that is attached here."""
        self.waiting.push(sequence)

    def detach(self, requests: set[Request]) -> None:
        """Take requests that do not run off the queue: they are unassigned then."""
        self.waiting.remove(requests)
        for request in requests:
            for sequence in request.unfinished:
                self._forget(sequence)
            request.replica = None

    def release(self, sequence: Sequence) -> None:
        """Free the slot and blocks of an ended sequence; its outputs in flight have no owner."""
        match sequence.status:
            case Status.RUNNING:
                self.worker.release(sequence)
            case Status.PREEMPTED:
                del self.worker.preempted[sequence.slot_generation]
            case Status.WAITING:
                self.waiting.forget(sequence)
        self._forget(sequence)

    def finish_reason(self, sequence: Sequence) -> FinishReason:
        """Why a sequence with the tokens that it has would end here, if it would."""
        return self.steps.stops.finish_reason(sequence, length_limit(sequence.request, self.info))

    def _forget(self, sequence: Sequence) -> None:
        self.speculation.client.forget(sequence)
        self.steps.forget(sequence)
        self.grammars.remove(sequence)
        self._pending_prefixes.remove(sequence)

    def on_worker_lost(self) -> LostRequests:
        """Take all sequences off the worker, whose KV is lost."""
        return release_lost_worker(self.worker)
