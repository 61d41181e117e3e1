"""Who asked for what: all requests that have not ended, and how each of them ends."""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from itertools import chain

from taco_proto.config import SchedulerConfig
from taco_proto.requests import FinishReason, GenerateRequest
from taco_scheduler.admission.reception import Reception
from taco_scheduler.admission.rejections import RejectedError, RejectionReason
from taco_scheduler.admission.validation import check_message
from taco_scheduler.core.waiting_queue import Deadlines
from taco_scheduler.state.output_buffer import OutputBuffer
from taco_scheduler.state.sequence import Request, Sequence, Status, new_request

# A request that was present at the death of so many workers is given up even if it got tokens in
# between: it might bring down one after the other.
MAX_WORKER_CRASHES = 4

logger = logging.getLogger("taco.scheduler")


class RequestRegistry:
    """Every client's requests by their handles.

    Args:
        refusals: where those are counted that it decides on by itself.

    Attributes:
        fair_share: what each tenant has had.
        num_sequences: those that have not ended, of all requests.
        suspected_requests: requests that were in a step that failed and have got no token since.
    """

    def __init__(self, config: SchedulerConfig, refusals: Counter[RejectionReason]) -> None:
        self._reception = Reception(config)
        self._refusals = refusals
        self.fair_share = self._reception.fair_share
        self.suspected_requests: set[Request] = set()
        self._deadlines = Deadlines()
        self._num_clients = 0
        self._num_arrivals = 0
        self.num_sequences = 0
        self._by_client: dict[OutputBuffer, dict[int, Request]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_client.values()))

    def __iter__(self) -> Iterator[Request]:
        return chain.from_iterable(by_handle.values() for by_handle in self._by_client.values())

    @property
    def num_waiting_tokens(self) -> int:
        """Of the prompts of requests that have not run yet, or have lost their worker."""
        return self._reception.admission_queue.num_tokens

    # ---------------------------------------------------------------- clients

    def connect(self) -> OutputBuffer:
        self._num_clients += 1
        output_buffer = OutputBuffer(self._num_clients)
        self._by_client[output_buffer] = {}
        return output_buffer

    def disconnect(self, output_buffer: OutputBuffer) -> None:
        """Ends whatever the client still has, silently."""
        for request in list(self._by_client[output_buffer].values()):
            self.drop(request)
        del self._by_client[output_buffer]

    def get(self, output_buffer: OutputBuffer, handle: int) -> Request | None:
        return self._by_client[output_buffer].get(handle)

    def new(self, output_buffer: OutputBuffer, message: GenerateRequest, now: float) -> Request:
        """A request that is yet to be added. Nothing is counted, and no request is rejected for it.

        Raises:
            RejectedError: it is invalid, the queue is full, or a quota of its tenant is used up.
        """
        if message.handle in self._by_client[output_buffer]:
            raise RejectedError(409, f"handle {message.handle} names a request that has not ended")
        check_message(message)
        self._reception.check(message, now)  # before any work that grows with prompt or replicas
        share = self._reception.share_of(message)
        return new_request(output_buffer, message, share, self._num_arrivals, now)

    def add(self, request: Request, message: GenerateRequest, now: float) -> None:
        """Lets a request in, for which another one may be refused.

        Raises:
            RejectedError: too many wait already.
        """
        for refused in self._reception.make_room(message, now):
            self.refuse(refused, self._reception.admission_queue.refusal(refused.share))
        self._num_arrivals += 1
        self.num_sequences += len(request.unfinished)  # a resumed one may have ended ones
        self._reception.enter(request)
        self._by_client[request.output_buffer][request.handle] = request
        self._deadlines.push(request)

    def next_deadline(self) -> float | None:
        """When `expire` is due."""
        return self._deadlines.next()

    def expire(self, now: float) -> None:
        """Fails the requests that have waited too long."""
        self._reception.admission_queue.tick(now)
        for request in self._deadlines.pop_passed(now):
            self._refusals[RejectionReason.DEADLINE] += 1
            self.fail(request, 504, "the deadline passed while the request was waiting")

    # ------------------------------------------------------------------- lives

    def note_admitted(self, request: Request) -> None:
        if not request.admitted:
            request.admitted = True
            self._reception.admission_queue.leave(request, runs=True)

    def note_unassigned(self, request: Request) -> None:
        """There is no replica for it any more: its deadline counts again."""
        if request.admitted:
            request.admitted = False
            self._reception.admission_queue.enter(request)
            self._deadlines.push(request)

    def strike(
        self, requests: Iterable[Request], *, is_crash: bool, has_begun: Set[Request]
    ) -> None:
        """A request that does not survive two faults in a row must not take the others down again.

        Until a suspect has got a token, `Policy` runs it without other suspects: the next failure
        tells which one it was.

        Args:
            requests: a step was sent for them.
            is_crash: the worker died, and did not only fail a step.
            has_begun: those suspects whose step the worker had begun. It cannot have died of the
                others: two workers that die in one moment are no reason to give a request up that
                was just moved from one to the other.
        """
        for request in requests:
            request.num_worker_crashes += is_crash
            is_guilty = request in self.suspected_requests and request in has_begun
            if is_guilty or request.num_worker_crashes >= MAX_WORKER_CRASHES:
                logger.error("request %s is given up: steps with it failed", request.request_id)
                self.fail(request, 500, "the steps that ran this request failed again and again")
            else:
                self.suspected_requests.add(request)

    # -------------------------------------------------------------------- ends

    def end(self, sequence: Sequence, reason: FinishReason) -> None:
        """Ends a sequence without a new token."""
        request = sequence.request
        stop_token_id = sequence.tokens[-1] if reason is FinishReason.STOP else -1
        num_cached = sequence.num_cached_tokens or 0
        request.output_buffer.add_end(
            request.handle, sequence.index, reason, stop_token_id, num_cached
        )
        self.free(sequence)

    def refuse(self, request: Request, refusal: RejectedError) -> None:
        """Ends a request that was let in, and has not run, after all."""
        self._refusals[refusal.reason] += 1
        request.output_buffer.add_rejection(request.handle, refusal)
        self.drop(request)

    def fail(self, request: Request, code: int, message: str, *, reason: str = "") -> None:
        request.output_buffer.add_error(request.handle, code, message, reason=reason)
        self.drop(request)

    def drop(self, request: Request) -> None:
        for sequence in request.unfinished:
            self.free(sequence)

    def free(self, sequence: Sequence) -> None:
        """Frees what an ended sequence holds, once; its outputs still in flight find no owner."""
        request = sequence.request
        if request.replica is not None:
            request.replica.release(sequence)
        sequence.status = Status.FINISHED
        self.num_sequences -= 1
        unfinished = request.unfinished
        if not unfinished:
            del self._by_client[request.output_buffer][request.handle]
            self._reception.leave(request)
            self.suspected_requests.discard(request)
            request.sequences.clear()  # no cycle keeps the tokens alive until the collector comes
        elif all(s.status is Status.AWAITING_PREFILL for s in unfinished):
            unfinished[0].take_prompt()  # it takes over as the first of its request
            unfinished[0].status = Status.WAITING
            if request.replica is not None:
                request.replica.queue(unfinished[0])
