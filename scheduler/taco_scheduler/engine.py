"""The continuous-batching engine: a state machine without I/O and without a clock."""

import logging

from taco_proto.config import SchedulerConfig
from taco_proto.requests import FinishReason, GenerateRequest
from taco_proto.steps import StepOutput, StepPlan, WorkerInfo
from taco_scheduler.admission import (
    RefusedError,
    check_config,
    check_fit,
    check_message,
    check_worker,
    length_limit,
)
from taco_scheduler.attached_worker import AttachedWorker
from taco_scheduler.commit import Committer
from taco_scheduler.counters import Counters
from taco_scheduler.draft_desk import DraftDesk
from taco_scheduler.in_flight import InFlightStep, InvalidOutputError, check_output
from taco_scheduler.kv.block_manager import BlockTable
from taco_scheduler.outbox import Outbox
from taco_scheduler.planner import make_plan
from taco_scheduler.policy import Policy, StepRows
from taco_scheduler.reception import Reception
from taco_scheduler.sequence import Request, Sequence, Status, new_request
from taco_scheduler.waiting import Deadlines, WaitingQueue

logger = logging.getLogger("taco.scheduler")


class Engine:
    """Requests in, step plans out; step outputs in, tokens out to each client's outbox.

    Time is seconds since the epoch and only ever passed in. Nothing here waits: whoever drives the
    engine sends each plan to the worker and hands every output back, in the order of the plans.

    Attributes:
        drafts: the draft worker's part in it.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        """Raises ConfigurationError if a limit makes no sense."""
        check_config(config)
        self.counters = Counters()
        self._config = config
        self._max_in_flight = 2 if config.run_ahead else 1
        self._worker: AttachedWorker | None = None
        self._policy: Policy | None = None
        self._committer: Committer | None = None
        self._epoch = 0
        self._step_id = 0
        self._num_clients = 0
        self._num_arrivals = 0
        self._reception = Reception(config)
        self._requests: dict[Outbox, dict[int, Request]] = {}
        self._waiting = WaitingQueue(self._reception.fair_share)
        self._deadlines = Deadlines()
        self._suspects: set[Request] = set()  # they were in a step that failed
        self.drafts = DraftDesk(config, self.counters, lambda: self.num_requests)

    # ------------------------------------------------------------------ state

    @property
    def info(self) -> WorkerInfo | None:
        return self._worker.info if self._worker else None

    @property
    def num_requests(self) -> int:
        return sum(len(requests) for requests in self._requests.values())

    @property
    def num_running(self) -> int:
        return self._worker.batch.num_running if self._worker else 0

    @property
    def num_waiting(self) -> int:
        unfinished = (
            r.unfinished for by_handle in self._requests.values() for r in by_handle.values()
        )
        return sum(len(sequences) for sequences in unfinished) - self.num_running

    @property
    def kv_usage(self) -> float:
        return self._worker.blocks.usage if self._worker else 0.0

    @property
    def num_free_blocks(self) -> int:
        return self._worker.blocks.num_free_blocks if self._worker else 0

    def next_deadline(self) -> float | None:
        """When `plan` should be called even if nothing else happens."""
        drafts = self.drafts.deadline()
        passes = self._deadlines.next()
        return passes if drafts is None else min(drafts, passes or drafts)

    # ---------------------------------------------------------------- clients

    def connect(self) -> Outbox:
        self._num_clients += 1
        outbox = Outbox(self._num_clients)
        self._requests[outbox] = {}
        return outbox

    def disconnect(self, outbox: Outbox) -> None:
        """Ends whatever the client still has, silently."""
        for request in list(self._requests[outbox].values()):
            self._drop(request)
        del self._requests[outbox]

    def submit(self, outbox: Outbox, message: GenerateRequest, now: float) -> None:
        """Queues a request; a refusal becomes an error in the outbox."""
        try:
            request = self._accept(outbox, message, now)
        except RefusedError as error:
            outbox.add_error(message.handle, error.code, str(error), error.retry_after)
            return
        self._num_arrivals += 1
        self._reception.enter(request)
        self._requests[outbox][request.handle] = request
        self._deadlines.push(request)
        self._waiting.push(request.sequences[0])
        self._end_if_complete(request)

    def cancel(self, outbox: Outbox, handle: int, index: int | None = None) -> None:
        """Ends a request or one of its sequences; what has ended already is left alone."""
        request = self._requests[outbox].get(handle)
        if request is None:
            return
        for sequence in request.unfinished:
            if index is None or sequence.index == index:
                self._end(sequence, FinishReason.ABORTED)

    # ---------------------------------------------------------------- workers

    def attach(self, info: WorkerInfo) -> None:
        """A worker with empty KV memory is there.

        Raises:
            InvalidWorkerError: its description is out of range.
        """
        check_worker(info)
        assert self._worker is None
        self._epoch += 1
        self._worker = AttachedWorker(info, self._config)
        self._policy = self._policy_for(self._worker)
        self._committer = self._committer_for(self._worker)
        self.drafts.set_worker(self._worker)
        for requests in self._requests.values():
            for request in list(requests.values()):
                self._check_again(request)

    def detach(self, *, is_fault: bool = True) -> None:
        """The worker is lost, with its KV. Its sequences wait for the next one, up to their
        deadlines.
        """
        worker = self._worker
        assert worker is not None
        steps = worker.in_flight.steps
        suspects = {s.request for step in steps for s in worker.sequences_in(step)}
        self._requeue_all(worker)
        self._worker = self._policy = self._committer = None
        self.drafts.set_worker(None)
        if is_fault:
            self._strike(suspects)
        for requests in self._requests.values():
            for request in requests.values():
                if request.admitted:
                    request.admitted = False
                    self._reception.lobby.enter(request)
                self._deadlines.push(request)

    # ------------------------------------------------------------------ steps

    def plan(self, now: float) -> StepPlan | None:
        """The next step, to be sent to the worker at once; None if there is nothing to run now."""
        self._reception.lobby.tick(now)
        for request in self._deadlines.pop_passed(now):
            self._fail(request, 504, "the deadline passed while the request was waiting")
        worker = self._worker
        if worker is None or len(worker.in_flight) >= self._max_in_flight:
            return None
        assert self._policy is not None
        rows = self._policy.fill_step(self.drafts.held())
        if not rows:
            return None
        self._step_id += 1
        plan, step = make_plan(
            worker.batch,
            rows,
            self._epoch,
            self._step_id,
            now=now,
            runs_alone=not worker.in_flight.steps,
            drafts=self.drafts.planned(rows.decode_slots, rows.max_drafts),
        )
        worker.in_flight.steps.append(step)
        self._after_planning(worker, rows, now)
        self.counters.num_steps += 1
        self.counters.iteration_tokens.observe(rows.num_tokens)
        return plan

    def commit(self, output: StepOutput, now: float) -> None:
        """Takes the output of the oldest step in flight; outputs of an older epoch are dropped.

        Raises:
            InvalidOutputError: it does not answer that step; nothing has changed.
        """
        worker = self._worker
        if worker is None or output.epoch < self._epoch:
            return
        if output.epoch > self._epoch:
            raise InvalidOutputError(f"epoch {output.epoch} has not begun")
        step = worker.in_flight.oldest(output.step_id)
        if output.error:
            self._fail_step(worker, step, output.error)
            return
        check_output(step, output, worker.info.vocab_size)
        worker.in_flight.steps.popleft()
        worker.blocks.confirm(step.step_id)
        self.drafts.note_step(step, output, now)
        assert self._committer is not None
        self._committer.commit(step, output, now)

    # ---------------------------------------------------------------- requests

    def _accept(self, outbox: Outbox, message: GenerateRequest, now: float) -> Request:
        """Raises RefusedError."""
        if message.handle in self._requests[outbox]:
            raise RefusedError(409, f"handle {message.handle} names a request that has not ended")
        check_message(message)
        share = self._reception.share_of(message)
        request = new_request(outbox, message, share, self._num_arrivals, now)
        if self._worker is not None:
            check_fit(request, self._worker.info)
        for refused in self._reception.make_room(message, now):
            refusal = self._reception.lobby.refusal(refused.share)
            self._fail(refused, refusal.code, str(refusal), refusal.retry_after)
        return request

    def _check_again(self, request: Request) -> None:
        """A worker came after the request: does its model fit?"""
        assert self._worker is not None
        try:
            check_fit(request, self._worker.info)
        except RefusedError as error:
            self._fail(request, error.code, str(error))
        else:
            self._end_if_complete(request)

    def _end_if_complete(self, request: Request) -> None:
        """A resumed request may have had all its tokens already."""
        if self._worker is None:
            return
        limit = length_limit(request, self._worker.info)
        for sequence in request.unfinished:
            reason = self._worker.stops.finish_reason(sequence, limit)
            if reason is not FinishReason.RUNNING:
                self._end(sequence, reason)

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        """Ends a sequence without a new token."""
        request = sequence.request
        stop_token_id = sequence.tokens[-1] if reason is FinishReason.STOP else -1
        num_cached = sequence.num_cached_tokens or 0
        request.outbox.add_end(request.handle, sequence.index, reason, stop_token_id, num_cached)
        self._retire(sequence)

    def _fail(self, request: Request, code: int, message: str, retry_after: int = 0) -> None:
        request.outbox.add_error(request.handle, code, message, retry_after)
        self._drop(request)

    def _drop(self, request: Request) -> None:
        for sequence in request.unfinished:
            self._retire(sequence)

    def _retire(self, sequence: Sequence) -> None:
        """Frees what an ended sequence holds, once; its outputs still in flight find no owner."""
        worker = self._worker
        request = sequence.request
        if sequence.status is Status.RUNNING:
            assert worker is not None
            worker.release(sequence)
        elif sequence.status is Status.LANDING:
            assert worker is not None
            del worker.landing[sequence.tenure]
        sequence.status = Status.FINISHED
        self.drafts.forget(sequence)
        unfinished = request.unfinished
        if not unfinished:
            del self._requests[request.outbox][request.handle]
            self._reception.leave(request)
            self._suspects.discard(request)
            request.sequences.clear()  # no cycle keeps the tokens alive until the collector comes
        elif all(s.status is Status.HELD for s in unfinished):
            self._queue_held(unfinished[0])  # it takes over as the first of its request

    # ----------------------------------------------------------------- running

    def _policy_for(self, worker: AttachedWorker) -> Policy:
        return Policy(
            worker.batch,
            worker.blocks,
            self._waiting,
            self._suspects,
            self._config.max_num_batched_tokens,
            self.drafts.limits(worker.info),
            admit=self._admit,
            preempt=self._preempt,
        )

    def _committer_for(self, worker: AttachedWorker) -> Committer:
        return Committer(
            worker.batch,
            worker.stops,
            worker.landing,
            self._suspects,
            self.counters,
            self._reception.fair_share,
            retire=self._retire,
            requeue=self._waiting.push,
            limit_of=lambda request: length_limit(request, worker.info),
        )

    def _admit(self, sequence: Sequence, table: BlockTable) -> None:
        worker = self._worker
        assert worker is not None
        request = sequence.request
        if not request.admitted:
            request.admitted = True
            self._reception.lobby.leave(request, runs=True)
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = min(table.num_cached_tokens, request.num_prompt_tokens)
            self.counters.prompt_tokens += request.num_prompt_tokens
            self._reception.fair_share.charge_prompt(
                request.share, request.num_prompt_tokens, sequence.num_cached_tokens
            )
        if self._config.enable_prefix_caching and not sequence.computes_prompt_logprobs:
            self.counters.prefix_cache_queries += len(sequence.tokens)
            self.counters.prefix_cache_hits += table.num_cached_tokens
        limit = length_limit(request, worker.info)
        worker.batch.join(sequence, table, limit, worker.info.block_size)

    def _after_planning(self, worker: AttachedWorker, rows: StepRows, now: float) -> None:
        """What the step computes of prompts can be matched from the next step on."""
        for sequence in rows.joined:
            if sequence.first_run_time is None:
                sequence.first_run_time = now
                self.counters.queue_seconds.observe(now - sequence.request.arrival_time)
                self.counters.speculation.num_sequences += 1
        for slot in rows.chunk_slots:
            sequence = worker.batch.owner(slot)
            num_computed = int(worker.batch.num_computed[slot])
            assert sequence.table is not None
            tokens = sequence.tokens.tobytes()
            worker.blocks.publish(sequence.table, tokens, num_computed, self._step_id)
            if num_computed >= sequence.request.num_prompt_tokens:
                self._release_held(sequence.request)

    def _release_held(self, request: Request) -> None:
        for sequence in request.sequences:
            if sequence.status is Status.HELD:
                self._queue_held(sequence)

    def _queue_held(self, sequence: Sequence) -> None:
        sequence.take_prompt()
        self._waiting.push(sequence)

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the queue, at once or when the outputs of the steps it is in have come."""
        worker = self._worker
        assert worker is not None
        self.counters.num_preemptions += 1
        sequence.num_landing = worker.in_flight.num_sampling_steps(sequence.tenure)
        worker.release(sequence)
        if sequence.num_landing:
            sequence.status = Status.LANDING
            worker.landing[sequence.tenure] = sequence
        else:
            self._waiting.push(sequence)

    # ------------------------------------------------------------------ faults

    def _fail_step(self, worker: AttachedWorker, step: InFlightStep, error: str) -> None:
        """Starts a new epoch: its first plan makes the worker drop its batch and go on."""
        logger.error("step %d failed on %s: %s", step.step_id, worker.info.name, error)
        self.counters.num_failed_steps += 1
        suspects = {sequence.request for sequence in worker.sequences_in(step)}
        worker.blocks.withdraw()
        self._requeue_all(worker)
        self._epoch += 1
        self._strike(suspects)

    def _requeue_all(self, worker: AttachedWorker) -> None:
        for sequence in worker.release_all():
            self._waiting.push(sequence)

    def _strike(self, requests: set[Request]) -> None:
        """A request that does not survive two steps in a row must not take the others down again.

        Until a suspect has got a token, `Policy` runs it without other suspects: the next failure
        tells which one it was.
        """
        for request in requests:
            if request in self._suspects:
                logger.error("request %s is given up: two steps with it failed", request.request_id)
                self._fail(request, 500, "the step that ran this request failed twice in a row")
            else:
                self._suspects.add(request)
