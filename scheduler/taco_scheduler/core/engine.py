"""The continuous-batching engine: a state machine without I/O and without a clock."""

import itertools
from collections.abc import Iterable

from taco_proto.config import SchedulerConfig
from taco_proto.kv_tiers import StoreCommand, StoreReport
from taco_proto.licenses import WorkerLicense
from taco_proto.requests import FinishReason, GenerateRequest
from taco_proto.steps import StepOutput, StepPlan, WorkerInfo
from taco_scheduler.admission.rejections import RejectedError
from taco_scheduler.admission.validation import (
    check_config,
    check_same_model,
    check_worker,
    length_limit,
)
from taco_scheduler.core import router
from taco_scheduler.core.replica import Replica
from taco_scheduler.core.request_registry import RequestRegistry
from taco_scheduler.state.counters import Counters
from taco_scheduler.state.output_buffer import OutputBuffer
from taco_scheduler.state.sequence import Request

# A replica that runs dry looks for work elsewhere at most so often.
CORRECTION_SECONDS = 0.05


class Engine:
    """Requests in, step plans out; step outputs in, tokens out to each client's output_buffer.

    Time is passed in: seconds of a clock that never goes back (`time.monotonic`). Nothing here
    waits: whoever drives the engine sends each plan to its worker and hands every output back, in
    the order of the plans.

    Attributes:
        replicas: the workers that are attached, in the order in which they came.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        """Raises ConfigurationError if a limit makes no sense."""
        check_config(config)
        self.counters = Counters()
        self.replicas: list[Replica] = []
        self._config = config
        self._requests = RequestRegistry(config, self.counters.refusals)
        self._epochs = itertools.count(1)
        self._step_ids = itertools.count(1)
        self._corrects_at = 0.0

    # ------------------------------------------------------------------- state

    @property
    def num_requests(self) -> int:
        return len(self._requests)

    @property
    def num_running(self) -> int:
        return sum(replica.num_running for replica in self.replicas)

    @property
    def num_waiting(self) -> int:
        return self._requests.num_sequences - self.num_running

    @property
    def num_waiting_tokens(self) -> int:
        return self._requests.num_waiting_tokens

    @property
    def num_blocks(self) -> int:
        return sum(replica.info.num_blocks for replica in self.replicas)

    @property
    def num_free_blocks(self) -> int:
        return sum(replica.worker.blocks.num_free_blocks for replica in self.replicas)

    @property
    def kv_usage(self) -> float:
        """Share of all blocks that are active, 0 to 1."""
        return 1 - self.num_free_blocks / self.num_blocks if self.replicas else 0.0

    @property
    def host_kv_usage(self) -> float:
        """Share of all host blocks that are in use, 0 to 1."""
        num_blocks = sum(replica.info.num_host_blocks for replica in self.replicas)
        num_used = sum(replica.worker.blocks.num_used_host_blocks for replica in self.replicas)
        return num_used / num_blocks if num_blocks else 0.0

    def next_deadline(self) -> float | None:
        """When `expire`, `plan` and `stalled` should be called even if nothing else happens."""
        times = [self._requests.next_deadline()]
        for replica in self.replicas:
            times += (replica.drafts.deadline(), replica.stall_deadline(), replica.drain_deadline)
            times.append(replica.disk_prefetch.deadline())
        return min((time for time in times if time is not None), default=None)

    # ---------------------------------------------------------------- clients

    def connect(self) -> OutputBuffer:
        return self._requests.connect()

    def disconnect(self, output_buffer: OutputBuffer) -> None:
        """Ends whatever the client still has, silently."""
        self._requests.disconnect(output_buffer)

    def submit(self, output_buffer: OutputBuffer, message: GenerateRequest, now: float) -> None:
        """Queues a request; a refusal becomes an error in the output_buffer."""
        request: Request | None = None
        try:
            request = self._requests.new(output_buffer, message, now)
            replica = router.choose(request, self.replicas)
            self._requests.add(request, message, now)
        except RejectedError as error:
            self.counters.refusals[error.reason] += 1
            output_buffer.add_rejection(message.handle, error)
            if request is not None:
                request.sequences.clear()  # no cycle keeps tokens and tenant until the collector
            return
        if replica is not None:
            self._queue(request, replica)

    def cancel(self, output_buffer: OutputBuffer, handle: int, index: int | None = None) -> None:
        """Ends a request or one of its sequences; what has ended already is left alone."""
        request = self._requests.get(output_buffer, handle)
        if request is None:
            return
        for sequence in request.unfinished:
            if index is None or sequence.index == index:
                self._requests.end(sequence, FinishReason.ABORTED)

    def expire(self, now: float) -> None:
        """Fails the requests that have waited too long."""
        self._requests.expire(now)

    # ---------------------------------------------------------------- workers

    def attach(self, info: WorkerInfo, *, is_watched: bool = True) -> Replica:
        """A worker with empty KV memory is there.

        Args:
            is_watched: it is given up if it makes no progress; see `stalled`.

        Raises:
            InvalidWorkerError: its description is out of range.
            OtherModelError: it serves another model than those that are attached.
        """
        check_worker(info)
        if self.replicas:
            check_same_model(info, self.replicas[0].info)
        replica = Replica(
            info,
            self._free_name(info.name),
            self._config,
            self._requests,
            self.counters,
            self._epochs,
            self._step_ids,
            is_watched=is_watched,
        )
        self.replicas.append(replica)
        self._corrects_at = 0.0
        self._place(request for request in self._requests if request.replica is None)
        return replica

    def detach(self, replica: Replica, *, is_fault: bool = True) -> None:
        """A worker is lost, with its KV. Its sequences go on elsewhere, or wait for a worker, up to
        their deadlines.
        """
        self.replicas.remove(replica)
        present, has_begun = replica.lose()
        concerned = [request for request in self._requests if request.replica is replica]
        for request in concerned:
            request.replica = None
        if is_fault:
            self.counters.num_lost_workers += 1
            self._requests.strike(present, is_crash=True, has_begun=has_begun)
        self._place(request for request in concerned if request.unfinished)

    def drain(self, replica: Replica, drain_deadline: float) -> None:
        """A worker wants to leave: it gets nothing new, and what waits there goes elsewhere. What
        runs may end, up to a time. `detach` is due when the replica `is_done`.
        """
        replica.drain_deadline = drain_deadline
        waiting = {
            request
            for request in self._requests
            if request.replica is replica and not request.is_on_worker
        }
        replica.give_up(waiting)
        self._place(waiting)

    def note_license(self, replica: Replica, license_: WorkerLicense) -> None:
        """A worker may take new requests from now on, or may not any more. What has begun finishes
        where it is; what waits goes to a worker that may, or is refused if none will.
        """
        replica.license = license_
        self._corrects_at = 0.0
        if not replica.accepts_requests:
            here = [request for request in self._requests if request.replica is replica]
            replica.give_up({request for request in here if not request.has_begun})
        self._place(request for request in self._requests if request.replica is None)

    def stalled(self, now: float) -> list[Replica]:
        """The workers that have not made progress for far too long."""
        times = [(replica.stall_deadline(), replica) for replica in self.replicas]
        return [replica for time, replica in times if time is not None and time <= now]

    # ------------------------------------------------------------------ steps

    def plan(self, replica: Replica, now: float) -> StepPlan | None:
        """The next step of a worker, to be sent at once; None if there is nothing to run now."""
        if len(self.replicas) > 1 and now >= self._corrects_at and replica.has_spare_capacity:
            self._steal_work(replica, now)
        return replica.plan(now)

    def commit(self, replica: Replica, output: StepOutput, now: float) -> None:
        """Takes the output of a worker's oldest step in flight; outputs of an older epoch, and of
        workers that are lost, are dropped.

        Raises:
            InvalidOutputError: it does not answer that step; nothing has changed.
        """
        if replica in self.replicas:
            replica.commit(output, now)

    def note_begun(self, replica: Replica, epoch: int, step_id: int) -> None:
        """A worker begins a step that it had to announce: see `StepPlan.is_announced`."""
        replica.note_begun(epoch, step_id)

    def next_store_command(self, replica: Replica) -> StoreCommand | None:
        """What a worker's disk tier is to do, to be sent at once; None if there is nothing now."""
        return replica.worker.blocks.next_store_command()

    def take_store_report(self, replica: Replica, report: StoreReport) -> None:
        """Takes what a worker's disk tier has done; that of workers that are lost is dropped."""
        if replica in self.replicas:
            replica.take_store_report(report)

    def flush(self) -> None:
        """Has what workers keep of prefixes written to disk, as far as it is worth it. No request
        is to come any more.
        """
        for replica in self.replicas:
            replica.worker.blocks.flush()

    @property
    def is_flushed(self) -> bool:
        return all(replica.worker.blocks.is_flushed for replica in self.replicas)

    # ----------------------------------------------------------------- routing

    def _place(self, requests: Iterable[Request]) -> None:
        """Finds a replica for each of some requests that are nowhere, the most urgent first."""
        for request in sorted(requests, key=lambda request: request.urgency):
            try:
                replica = router.choose(request, self.replicas)
            except RejectedError as error:
                self._requests.refuse(request, error)
                continue
            if replica is None:
                self._requests.note_unassigned(request)
            else:
                self._queue(request, replica)

    def _queue(self, request: Request, replica: Replica) -> None:
        replica.take(request, is_choice=len(self.replicas) > 1)
        # A resumed request may have had all its tokens already.
        limit = length_limit(request, replica.info)
        for sequence in request.unfinished:
            reason = replica.worker.stops.finish_reason(sequence, limit)
            if reason is not FinishReason.RUNNING:
                self._requests.end(sequence, reason)

    def _steal_work(self, idle: Replica, now: float) -> None:
        """A replica has nothing to begin with: what waits elsewhere may be done sooner there."""
        busy = max(self.replicas, key=lambda replica: replica.queued_load)
        if not busy.waiting.num_sequences:
            return
        self._corrects_at = now + CORRECTION_SECONDS
        moved = router.find_rebalance(idle, busy)
        busy.give_up(set(moved))
        for request in moved:
            idle.take(request)

    def _free_name(self, name: str) -> str:
        """The name, or one that no other worker has: metrics tell workers by their names."""
        taken = {replica.name for replica in self.replicas}
        names = (name if number == 1 else f"{name}-{number}" for number in itertools.count(1))
        return next(candidate for candidate in names if candidate not in taken)
