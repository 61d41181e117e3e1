"""All requests that have not ended, by client, and the ways in which a request ends."""

from collections import Counter
from collections.abc import Iterator
from itertools import chain

from taco_proto.config import SchedulerConfig
from taco_proto.requests import FinishReason, GenerateRequest
from taco_scheduler.admission.admission_control import AdmissionControl
from taco_scheduler.admission.rejections import RejectedError, RejectionReason
from taco_scheduler.admission.validation import check_message
from taco_scheduler.core.wide_logprobs import WideLogprobGate
from taco_scheduler.faults.poison_requests import PoisonRequestDetector
from taco_scheduler.queue.queue_deadlines import QueueDeadlines
from taco_scheduler.state.output_buffer import OutputBuffer
from taco_scheduler.state.sequence import Request, Sequence, Status, new_request


class RequestRegistry:
    """Every client's requests by their handles.

    Args:
        rejections: counts the rejections that the registry itself decides.

    Attributes:
        admission: queue limits, rate limits and fair share.
        fair_share: the token counter of each tenant.
        poison: detects requests that make steps fail.
        wide_logprobs: holds requests for the log probabilities of large parts of the vocabulary.
        num_sequences: sequences of all requests that have not ended.
    """

    def __init__(self, config: SchedulerConfig, rejections: Counter[RejectionReason]) -> None:
        self.admission: AdmissionControl[Request] = AdmissionControl(config)
        self.fair_share = self.admission.fair_share
        self.poison = PoisonRequestDetector(self.fail)
        self.wide_logprobs = WideLogprobGate()
        self.num_sequences = 0
        self._rejections = rejections
        self._deadlines = QueueDeadlines()
        self._num_clients = 0
        self._num_arrivals = 0
        self._by_client: dict[OutputBuffer, dict[int, Request]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_client.values()))

    def __iter__(self) -> Iterator[Request]:
        return chain.from_iterable(by_handle.values() for by_handle in self._by_client.values())

    @property
    def num_waiting_tokens(self) -> int:
        """Prompt tokens of the requests that have not run yet or have lost their worker."""
        return self.admission.backlogs.num_tokens

    # ---------------------------------------------------------------- clients

    def connect(self) -> OutputBuffer:
        """Register a client; returns the buffer for its outputs."""
        self._num_clients += 1
        output_buffer = OutputBuffer(self._num_clients)
        self._by_client[output_buffer] = {}
        return output_buffer

    def disconnect(self, output_buffer: OutputBuffer) -> None:
        """Abort all requests of a client, without a message to it."""
        for request in list(self._by_client[output_buffer].values()):
            self.abort(request)
        del self._by_client[output_buffer]

    def get(self, output_buffer: OutputBuffer, handle: int) -> Request | None:
        """A client's request; None if it has ended."""
        return self._by_client[output_buffer].get(handle)

    def new(self, output_buffer: OutputBuffer, message: GenerateRequest, now: float) -> Request:
        """Make a request that `add` may admit. Counts nothing and rejects no other request.

        Raises:
            RejectedError: it is invalid, the queue is full, or its tenant has reached a limit.
        """
        if message.handle in self._by_client[output_buffer]:
            raise RejectedError(409, f"handle {message.handle} names a request that has not ended")
        check_message(message)
        self.admission.check(message, now)  # before work that grows with the prompt or replicas
        share = self.admission.share_of(message)
        return new_request(output_buffer, message, share, self._num_arrivals, now)

    def add(self, request: Request, message: GenerateRequest, now: float) -> None:
        """Admit a request; waiting requests of other tenants may be rejected in its place.

        Raises:
            RejectedError: the queue is full.
        """
        for victim in self.admission.admit(message, now):
            self.reject(victim, self.admission.queue_full_error(victim.share))
        self._num_arrivals += 1
        self.num_sequences += len(request.unfinished)  # a resumed request may have ended sequences
        self.admission.enter(request)
        self._by_client[request.output_buffer][request.handle] = request
        self._deadlines.push(request)

    def next_deadline(self) -> float | None:
        """When `expire` is due; None if no waiting request has a deadline."""
        return self._deadlines.next()

    def expire(self, now: float) -> None:
        """Fail the requests whose deadline passed while they waited."""
        self.admission.tick(now)
        for request in self._deadlines.pop_passed(now):
            self._rejections[RejectionReason.DEADLINE] += 1
            self.fail(request, 504, "the deadline passed while the request was waiting")

    # --------------------------------------------------------------- progress

    def note_running(self, request: Request) -> None:
        """Record that one of the request's sequences has got a slot."""
        if not request.admitted:
            request.admitted = True
            self.admission.note_running(request)

    def note_unassigned(self, request: Request) -> None:
        """Record that no replica can run the request now: its deadline counts again."""
        self.wide_logprobs.note_unassigned(request)
        if request.admitted:
            request.admitted = False
            self.admission.requeue(request)
            self._deadlines.push(request)

    # -------------------------------------------------------------------- ends

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence without a new token, and tell its client."""
        request = sequence.request
        stop_token_id = sequence.tokens[-1] if reason is FinishReason.STOP else -1
        num_cached = sequence.num_cached_tokens or 0
        request.output_buffer.add_end(
            request.handle, sequence.index, reason, stop_token_id, num_cached
        )
        self.free(sequence)

    def cancel(self, request: Request, index: int | None = None) -> None:
        """End a request, or one sequence of its answer, because its client no longer wants it."""
        search = request.search
        if search is None:
            for sequence in request.unfinished:
                if index is None or sequence.index == index:
                    self.finish(sequence, FinishReason.ABORTED)
            return
        # Which beams the answer will have is not known yet.
        wanted = set(range(request.sampling.n)) - search.unwanted
        ended = wanted if index is None else wanted & {index}
        for place in sorted(ended):
            request.output_buffer.add_end(request.handle, place, FinishReason.ABORTED, -1, 0)
        search.unwanted |= ended
        if ended == wanted:
            self.abort(request)

    def replace_sequences(self, request: Request, sequences: list[Sequence]) -> None:
        """Give a request the beams of its next step, and free those that do not continue."""
        before, after = set(request.sequences), set(sequences)
        new = [sequence for sequence in sequences if sequence not in before]
        ended = [sequence for sequence in request.sequences if sequence not in after]
        self.num_sequences += len(new) - len(ended)
        request.sequences = sequences
        if request.replica is not None:
            for sequence in new:
                request.replica.add(sequence)
            for sequence in ended:
                request.replica.release(sequence)
        for sequence in ended:
            sequence.status = Status.FINISHED

    def reject(self, request: Request, rejection: RejectedError) -> None:
        """Reject a request that was admitted and has not run."""
        self._rejections[rejection.reason] += 1
        request.output_buffer.add_rejection(request.handle, rejection)
        self.abort(request)

    def fail(self, request: Request, code: int, message: str, *, reason: str = "") -> None:
        """End a request with an error."""
        request.output_buffer.add_error(request.handle, code, message, reason=reason)
        self.abort(request)

    def abort(self, request: Request) -> None:
        """End a request without a message to its client."""
        for sequence in request.unfinished:
            self.free(sequence)

    def free(self, sequence: Sequence) -> None:
        """Free the slot and blocks of an ended sequence, once.

        Its outputs in flight have no owner then. The request ends with its last sequence.
        """
        request = sequence.request
        if request.replica is not None:
            request.replica.release(sequence)
        sequence.status = Status.FINISHED
        self.num_sequences -= 1
        unfinished = request.unfinished
        if not unfinished:
            del self._by_client[request.output_buffer][request.handle]
            self.admission.leave(request)
            self.poison.clear(request)
            request.sequences.clear()  # no cycle keeps the tokens alive until a garbage collection
        elif all(s.status is Status.AWAITING_PREFILL for s in unfinished):
            unfinished[0].take_prompt()  # it computes the prompt for its siblings now
            unfinished[0].status = Status.WAITING
            if request.replica is not None:
                request.replica.enqueue(unfinished[0])
