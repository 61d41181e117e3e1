"""What the scheduler keeps of a request and of each of its sequences.

A sequence is its committed tokens: the prompt and what was generated. Where it stands on a worker
(slot, blocks, tokens in flight) can be dropped at any time and rebuilt from them, so preemption,
the loss of a worker and the resubmission of a request are one operation: back to the queue, with
the tokens.
"""

import enum
from array import array
from dataclasses import dataclass, field
from typing import Protocol

from taco_proto.requests import GenerateRequest, PrefixPin, Tenant
from taco_proto.sampling_params import SamplingParams
from taco_scheduler.admission.fair_share import Share
from taco_scheduler.kv.block_table import BlockTable
from taco_scheduler.kv.namespace import CacheNamespace
from taco_scheduler.state.output_buffer import OutputBuffer
from taco_scheduler.state.token_log import TokenLog
from taco_scheduler.token_ids import TOKEN_BYTES, token_array

# Sooner first: priority, arrival of the request, index of the sequence.
Urgency = tuple[int, int, int]


class Status(enum.Enum):
    """Where a sequence stands.

    Attributes:
        HELD: it waits until the first sequence of its request has its prefill planned.
        WAITING: it is in the queue of a replica, or waits for a worker to come.
        RUNNING: it has a slot and blocks.
        LANDING: it was preempted and waits for outputs of the steps that it is still in.
        FINISHED: nothing of it is left but its tokens.
    """

    AWAITING_PREFILL = enum.auto()
    WAITING = enum.auto()
    RUNNING = enum.auto()
    PREEMPTED = enum.auto()
    FINISHED = enum.auto()


class AssignedReplica(Protocol):
    """The replica where the sequences of a request wait and run.

    Attributes:
        name: of its worker.
    """

    name: str

    def release(self, sequence: "Sequence") -> None:
        """Free a sequence's slot and blocks; its outputs in flight have no owner then."""

    def enqueue(self, sequence: "Sequence") -> None:
        """Queue a sequence there."""


@dataclass(slots=True, eq=False)
class Request:
    """What a client asked for: `sampling.num_sequences` continuations of one prompt.

    Attributes:
        max_token_id: the largest id of its prompt and of the tokens that it brought along.
        arrival: counts requests in the order in which they came.
        tenant, share: whose it is, and what that one has had.
        num_prompt_logprobs: prompt positions up to which log probabilities were emitted (the first
            one, which has none, counts).
        admitted: one of its sequences has run, and there was a replica for it ever since.
        accepted: there was a replica that can run it.
        replica: where its sequences wait and run, all of them together; None: nowhere for now.
        num_worker_crashes: workers that died while a step ran for it.
    """

    output_buffer: OutputBuffer
    handle: int
    request_id: str
    sampling: SamplingParams
    stop_token_ids: frozenset[int]
    namespace: CacheNamespace
    num_prompt_tokens: int
    max_token_id: int
    priority: int
    arrival: int
    arrival_time: float
    deadline: float | None
    tenant: Tenant
    share: Share
    pins: tuple[PrefixPin, ...] = ()
    prompt_cache_key: str = ""
    num_prompt_logprobs: int = 1
    admitted: bool = False
    accepted: bool = False
    replica: AssignedReplica | None = None
    num_worker_crashes: int = 0
    sequences: list["Sequence"] = field(default_factory=list)

    @property
    def unfinished(self) -> list["Sequence"]:
        return [s for s in self.sequences if s.status is not Status.FINISHED]

    @property
    def urgency(self) -> tuple[int, int]:
        return (self.priority, self.arrival)

    @property
    def has_begun(self) -> bool:
        """A step was planned for it, here or where it was before."""
        return any(s.first_run_time is not None or s.num_generated > 0 for s in self.sequences)

    @property
    def is_on_worker(self) -> bool:
        """A step may be running for it."""
        return any(s.status in (Status.RUNNING, Status.PREEMPTED) for s in self.sequences)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Prompt log probabilities were asked for and are not complete yet."""
        asked = self.sampling.prompt_logprobs is not None
        return asked and self.num_prompt_logprobs < self.num_prompt_tokens


@dataclass(slots=True, eq=False)
class Sequence:
    """One continuation of a request's prompt.

    Attributes:
        slot, tenure, table: its place in the batch while it runs; a tenure names one stay in a
            slot.
        num_cached_tokens: prompt tokens found in the prefix cache when it first ran; None before.
        num_outputs_in_flight: steps in flight that may still bring a token of a preempted sequence.
        queue, queue_number: the queue that it waits in, and the number of the push that is valid.
        num_queued_tokens: of its tokens, those that it is expected to compute while it waits.
        packed: see `pack`.
        token_log: where its newest tokens are while it runs.
        awaits: the running sequence whose prefill brings blocks that this one lacks, and the number
            of blocks that both have in common; None: it waits for no other one.
    """

    request: Request
    index: int
    _tokens: "array[int]"
    status: Status
    slot: int = -1
    slot_generation: int = -1
    table: BlockTable | None = None
    num_cached_tokens: int | None = None
    num_outputs_in_flight: int = 0
    queue: object | None = None
    queue_number: int = 0
    num_queued_tokens: int = 0
    first_run_time: float | None = None
    first_token_time: float | None = None
    packed: bytes = b""
    token_log: TokenLog | None = None
    awaits: "tuple[Sequence, int] | None" = None

    @property
    def urgency(self) -> Urgency:
        return (self.request.priority, self.request.arrival, self.index)

    @property
    def tokens(self) -> "array[int]":
        """Prompt and committed tokens; empty while it is held. One array, which grows: while a
        `memoryview` of it exists, no step may be committed.
        """
        if self.token_log is not None and (new := self.token_log.take(self.slot)):
            self._tokens.extend(new)
        return self._tokens

    def pack(self) -> bytes:
        """The tokens as packed int32 ids: made once, and again only after more have come."""
        tokens = self.tokens
        if len(self.packed) != len(tokens) * tokens.itemsize:
            self.packed = tokens.tobytes()
        return self.packed

    def take_prompt(self) -> None:
        """Gives a held sequence its tokens."""
        self._tokens = self.request.sequences[0].tokens[: self.request.num_prompt_tokens]

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.request.num_prompt_tokens

    def sampling_for_worker(self) -> SamplingParams:
        """Parameters of this sequence alone: its own seed; prompt log probabilities if it is to
        compute them.
        """
        params = self.request.sampling
        assert params.seed is not None
        if params.num_sequences == 1 and params.prompt_logprobs is None:
            return params
        return params.with_updates(
            n=1,
            best_of=None,
            seed=sequence_seed(params.seed, self.index),
            prompt_logprobs=params.prompt_logprobs if self.computes_prompt_logprobs else None,
        )

    @property
    def computes_prompt_logprobs(self) -> bool:
        request = self.request
        return request.wants_prompt_logprobs and request.unfinished[0] is self


def new_request(
    output_buffer: OutputBuffer, message: GenerateRequest, share: Share, arrival: int, now: float
) -> Request:
    """The request and its sequences. A sequence with tokens, and the first one that has not
    finished, waits for a slot; the others are held (see `Status`).
    """
    sampling = message.sampling
    request = Request(
        output_buffer=output_buffer,
        handle=message.handle,
        request_id=message.request_id,
        sampling=sampling,
        stop_token_ids=frozenset(sampling.stop_token_ids or ()),
        namespace=CacheNamespace(message.adapter, message.cache_salt),
        num_prompt_tokens=len(message.token_ids) // TOKEN_BYTES,
        max_token_id=_max_token(message.token_ids, *message.emitted_token_ids),
        priority=message.priority,
        arrival=arrival,
        arrival_time=now,
        deadline=message.deadline,
        tenant=message.tenant,
        share=share,
        pins=message.pins,
        prompt_cache_key=message.prompt_cache_key,
    )
    emitted = message.emitted_token_ids or (b"",) * sampling.num_sequences
    finished = frozenset(message.finished_indexes)
    is_first = True
    for index in range(sampling.num_sequences):
        if index in finished:
            status = Status.FINISHED
        elif is_first or emitted[index]:
            status, is_first = Status.WAITING, False
        else:
            status = Status.AWAITING_PREFILL
        # A queue of long prompts times 128 would be more than the memory can hold: held sequences
        # have no tokens, and take the prompt from the first sequence, whatever its status.
        has_prompt = index == 0 or status is Status.WAITING
        packed = message.token_ids + emitted[index] if has_prompt else b""
        tokens = array("i", packed)
        request.sequences.append(Sequence(request, index, tokens, status, packed=packed))
    return request


def _max_token(*packed: bytes) -> int:
    return max(int(token_array(tokens).max()) for tokens in packed if tokens)


def sequence_seed(seed: int, index: int) -> int:
    """The seed of sequence `index`: the request's own for the first one, mixed with the index for
    the others (splitmix64; Steele, Lea and Flood, 2014), as a signed 64-bit integer.
    """
    if index == 0:
        return seed
    mask = 2**64 - 1
    z = (seed + index * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    z ^= z >> 31
    return z - 2**64 if z >= 2**63 else z
