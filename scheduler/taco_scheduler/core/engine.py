"""The engine: continuous batching over all workers, as a state machine without I/O or a clock."""

import itertools
from collections.abc import Iterable

from taco_proto.config import SchedulerConfig
from taco_proto.grammars import GrammarReady
from taco_proto.licenses import WorkerLicense
from taco_proto.requests import FinishReason, GenerateRequest
from taco_proto.steps import StepPlan, WorkerInfo
from taco_scheduler.admission.rejections import RejectedError
from taco_scheduler.admission.validation import (
    check_config,
    check_same_model,
    check_worker,
)
from taco_scheduler.core import router
from taco_scheduler.core.rebalancing import Rebalancer
from taco_scheduler.core.replica import Replica
from taco_scheduler.core.request_registry import RequestRegistry
from taco_scheduler.state.counters import Counters
from taco_scheduler.state.output_buffer import OutputBuffer
from taco_scheduler.state.sequence import Request

INVALID_GRAMMAR = "invalid_grammar"


class Engine:
    """Takes requests, assigns them to workers and plans their steps.

    Time is an argument: seconds of a clock that never goes back (`time.monotonic`). No method
    waits. The caller sends each plan to its worker, and passes every output, in the order of the
    plans, to `commit` of the replica's `steps`, which adds the tokens to the clients' buffers. It
    drops what a lost worker still sends.

    Attributes:
        counters: totals for metrics.
        replicas: the attached workers, in order of attachment.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        """Raises: ConfigurationError: a limit is out of range."""
        check_config(config)
        self.counters = Counters()
        self.replicas: list[Replica] = []
        self._config = config
        self._requests = RequestRegistry(config, self.counters.rejections)
        self._epochs = itertools.count(1)
        self._step_ids = itertools.count(1)
        self._rebalancer = Rebalancer(self.replicas)

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
        """Active part of all device blocks, 0 to 1."""
        return 1 - self.num_free_blocks / self.num_blocks if self.replicas else 0.0

    @property
    def host_kv_usage(self) -> float:
        """Used part of all host blocks, 0 to 1."""
        num_blocks = sum(replica.info.num_host_blocks for replica in self.replicas)
        num_used = sum(replica.worker.blocks.num_used_host_blocks for replica in self.replicas)
        return num_used / num_blocks if num_blocks else 0.0

    def next_deadline(self) -> float | None:
        """When to call `expire`, `plan` and `stalled` even if no message comes; None: never."""
        times = [self._requests.next_deadline()]
        for replica in self.replicas:
            times += replica.deadlines()
        return min((time for time in times if time is not None), default=None)

    # ---------------------------------------------------------------- clients

    def connect(self) -> OutputBuffer:
        return self._requests.connect()

    def disconnect(self, output_buffer: OutputBuffer) -> None:
        """Abort all requests of a client, without a message to it."""
        self._requests.disconnect(output_buffer)

    def submit(self, output_buffer: OutputBuffer, message: GenerateRequest, now: float) -> None:
        """Queue a request; a rejection becomes an error in the output buffer."""
        request: Request | None = None
        try:
            request = self._requests.new(output_buffer, message, now)
            replica = router.choose(request, self.replicas)
            self._requests.add(request, message, now)
        except RejectedError as error:
            self.counters.rejections[error.reason] += 1
            output_buffer.add_rejection(message.handle, error)
            if request is not None:
                request.sequences.clear()  # no cycle delays their memory's release
            return
        if replica is not None:
            self._queue(request, replica)

    def cancel(self, output_buffer: OutputBuffer, handle: int, index: int | None = None) -> None:
        """Abort a request, or one of its sequences; an ended one is left alone."""
        request = self._requests.get(output_buffer, handle)
        if request is None:
            return
        self._requests.cancel(request, index)

    def expire(self, now: float) -> None:
        """Fail the requests whose deadline passed while they waited."""
        self._requests.expire(now)

    # ---------------------------------------------------------------- workers

    def attach(self, info: WorkerInfo, *, detects_stalls: bool = True) -> Replica:
        """Attach a worker whose KV memory is empty.

        Args:
            detects_stalls: the worker counts as lost if it makes no progress; see `stalled`.

        Raises:
            InvalidWorkerError: its description is out of range.
            OtherModelError: it serves another model than the attached workers.
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
            detects_stalls=detects_stalls,
        )
        self.replicas.append(replica)
        self._rebalancer.search_now()
        self._assign(request for request in self._requests if request.replica is None)
        return replica

    def on_worker_lost(self, replica: Replica, *, is_fault: bool = True) -> None:
        """Detach a worker whose KV is lost.

        Its sequences continue on other workers, or wait for a worker up to their deadlines.

        Args:
            is_fault: the worker crashed or stalled, and did not leave by itself.
        """
        self.replicas.remove(replica)
        lost = replica.on_worker_lost()
        unassigned = [request for request in self._requests if request.replica is replica]
        for request in unassigned:
            request.replica = None
        if is_fault:
            self.counters.num_lost_workers += 1
            self._requests.poison.on_worker_crash(lost.in_flight, lost.has_begun)
        self._assign(request for request in unassigned if request.unfinished)

    def drain(self, replica: Replica, deadline: float) -> None:
        """Drain a worker that wants to leave.

        It gets no new requests, and its waiting requests move to other workers. Its running
        requests may end until the deadline. Call `on_worker_lost` when the replica `is_drained`.
        """
        replica.drain_deadline = deadline
        waiting = {
            request
            for request in self._requests
            if request.replica is replica and not request.is_on_worker
        }
        replica.detach(waiting)
        self._assign(waiting)

    def note_license(self, replica: Replica, license_: WorkerLicense) -> None:
        """Record whether a worker may take new requests.

        Without a license, its running requests end there. Its waiting requests move to a licensed
        worker, or are rejected if none will have a license.
        """
        replica.license = license_
        self._rebalancer.search_now()
        if not replica.accepts_requests:
            here = [request for request in self._requests if request.replica is replica]
            replica.detach({request for request in here if not request.has_begun})
        self._assign(request for request in self._requests if request.replica is None)

    def note_grammar(self, replica: Replica, ready: GrammarReady) -> None:
        """Record that a worker has compiled a grammar; if it could not, fail its requests there."""
        replica.grammars.note_compiled(ready)
        if not ready.error:
            return
        for request in list(self._requests):
            is_meant = request.grammar is not None and request.grammar.hash == ready.hash
            if is_meant and request.replica is replica:
                self._requests.fail(request, 400, ready.error, reason=INVALID_GRAMMAR)

    def stalled(self, now: float) -> list[Replica]:
        """The workers whose oldest step has taken far longer than any before."""
        times = [(replica.stall_deadline(), replica) for replica in self.replicas]
        return [replica for time, replica in times if time is not None and time <= now]

    # ------------------------------------------------------------------ steps

    def plan(self, replica: Replica, now: float) -> StepPlan | None:
        """The next step of a worker, to be sent at once; None if there is nothing to run now."""
        self._rebalancer.steal_work(replica, now)
        return replica.steps.plan(now, is_draining=replica.is_draining)

    def flush(self) -> None:
        """Write the cached prefixes to disk, as far as there is space. No request may come then."""
        for replica in self.replicas:
            replica.worker.blocks.flush()

    @property
    def is_flushed(self) -> bool:
        return all(replica.worker.blocks.disk.is_flushed for replica in self.replicas)

    # ----------------------------------------------------------------- routing

    def _assign(self, requests: Iterable[Request]) -> None:
        """Find a replica for each unassigned request, the most urgent request first."""
        for request in sorted(requests, key=lambda request: request.urgency):
            try:
                replica = router.choose(request, self.replicas)
            except RejectedError as error:
                self._requests.reject(request, error)
                continue
            if replica is None:
                self._requests.note_unassigned(request)
            else:
                self._queue(request, replica)

    def _queue(self, request: Request, replica: Replica) -> None:
        replica.attach(request, is_choice=len(self.replicas) > 1)
        # A resumed request may have all its tokens already.
        for sequence in request.unfinished:
            reason = replica.finish_reason(sequence)
            if reason is not FinishReason.RUNNING:
                self._requests.finish(sequence, reason)

    def _free_name(self, name: str) -> str:
        """The name with a number if another worker has it: metrics label workers by name."""
        taken = {replica.name for replica in self.replicas}
        names = (name if number == 1 else f"{name}-{number}" for number in itertools.count(1))
        return next(candidate for candidate in names if candidate not in taken)
