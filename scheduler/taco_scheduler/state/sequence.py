"""Requests and their sequences.

The state of a sequence is its committed tokens: the prompt and the generated tokens. Its slot,
blocks and tokens in flight on a worker can be dropped at any time and rebuilt from these tokens. So
preemption, worker loss and resubmission are one operation: the sequence is queued with its tokens.
"""

import enum
from array import array
from dataclasses import dataclass, field
from typing import Protocol

from taco_proto.grammars import Grammar
from taco_proto.requests import GenerateRequest, PrefixPin, Tenant
from taco_proto.sampling_params import SamplingParams
from taco_scheduler.admission.fair_share import Share
from taco_scheduler.kv.block_table import BlockTable
from taco_scheduler.kv.namespace import CacheNamespace
from taco_scheduler.state.beam_search import BeamSearch, Candidates
from taco_scheduler.state.output_buffer import OutputBuffer
from taco_scheduler.state.token_log import TokenLog
from taco_scheduler.token_ids import TOKEN_BYTES, token_array

# The smallest comes first: priority, arrival of the request, index of the sequence.
Urgency = tuple[int, int, int]


class Status(enum.Enum):
    """Status of a sequence.

    Attributes:
        AWAITING_PREFILL: it waits until a step computes the prompt for the first sequence of its
            request.
        WAITING: it is in a replica's queue, or unassigned because there is no worker.
        RUNNING: it has a slot and blocks.
        PREEMPTED: it has lost them, and outputs of steps in flight are still to come.
        HELD: it is a beam without them, whose candidates have come, and those of another beam have
            not.
        FINISHED: it has ended.
    """

    AWAITING_PREFILL = enum.auto()
    WAITING = enum.auto()
    RUNNING = enum.auto()
    PREEMPTED = enum.auto()
    HELD = enum.auto()
    FINISHED = enum.auto()


class AssignedReplica(Protocol):
    """The replica that a request is assigned to.

    Attributes:
        name: of its worker.
    """

    name: str

    def release(self, sequence: "Sequence") -> None:
        """Free a sequence's slot and blocks; its outputs in flight have no owner then."""

    def add(self, sequence: "Sequence") -> None:
        """Record a new sequence of a request that is attached there; `release` is to come."""

    def enqueue(self, sequence: "Sequence") -> None:
        """Queue a sequence there."""


@dataclass(slots=True, eq=False)
class Request:
    """A client's request for `sampling.num_sequences` continuations of one prompt.

    Attributes:
        max_token_id: the largest id of its prompt and of the tokens generated before it came here.
        arrival: its number in the order of arrival.
        share: the counters of its tenant.
        num_prompt_logprobs: prompt positions whose log probabilities were emitted, including the
            first position, which has none.
        admitted: one of its sequences has run, and it was never unassigned since.
        accepted: a replica that can run it was found once.
        replica: where all its sequences wait and run; None: it is unassigned.
        num_worker_crashes: workers that crashed during a step for it.
        grammar: what the text must match; None: free text.
        search: its beam search, whose beams are its sequences; None: it samples.
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
    grammar: Grammar | None = None
    search: BeamSearch | None = None
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
        """A step was planned for it, here or on another scheduler."""
        return any(s.first_run_time is not None or s.num_generated > 0 for s in self.sequences)

    @property
    def is_on_worker(self) -> bool:
        """A step may be running for it."""
        return any(s.status in (Status.RUNNING, Status.PREEMPTED) for s in self.sequences)

    @property
    def ignores_eos(self) -> bool:
        """Whether an end-of-sequence token does not end it. Where a grammar allows such a token,
        the text is complete."""
        return self.sampling.ignore_eos and self.grammar is None

    @property
    def adapter(self) -> str:
        """The name of its LoRA adapter; empty: the base model."""
        return self.namespace.adapter

    @property
    def reads_history(self) -> bool:
        """Whether choosing its next token reads tokens in cached blocks too."""
        return self.sampling.reads_history or self.grammar is not None

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Requested prompt log probabilities are not complete."""
        is_requested = self.sampling.prompt_logprobs is not None
        return is_requested and self.num_prompt_logprobs < self.num_prompt_tokens


@dataclass(slots=True, eq=False)
class Sequence:
    """One continuation of a request's prompt.

    Attributes:
        slot, slot_generation, table: its slot and blocks while it runs; see `Batch`.
        num_cached_tokens: prompt tokens found in the prefix cache when it first ran; None before.
        num_outputs_in_flight: steps in flight that may still sample for a preempted sequence.
        queue, queue_number: its queue, and the number of its latest push there.
        num_queued_tokens: tokens that it is expected to compute, counted while it waits.
        packed: see `pack`.
        token_log: holds its newest tokens while it runs.
        awaits: a running sequence that computes blocks which this one lacks, and the number of
            blocks that both have in common.
        candidates: what may follow the tokens of a beam; None: its step is still to come.
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
    candidates: Candidates | None = None

    @property
    def urgency(self) -> Urgency:
        return (self.request.priority, self.request.arrival, self.index)

    @property
    def tokens(self) -> "array[int]":
        """Prompt and committed tokens; empty while it awaits the prefill.

        The array grows: while a `memoryview` of it exists, no step may be committed.
        """
        if self.token_log is not None and (new := self.token_log.take(self.slot)):
            self._tokens.extend(new)
        return self._tokens

    def pack(self) -> bytes:
        """The tokens as packed int32 ids, cached until more tokens come."""
        tokens = self.tokens
        if len(self.packed) != len(tokens) * tokens.itemsize:
            self.packed = tokens.tobytes()
        return self.packed

    def take_prompt(self) -> None:
        """Give a sequence that awaited the prefill its tokens."""
        self._tokens = self.request.sequences[0].tokens[: self.request.num_prompt_tokens]

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.request.num_prompt_tokens

    def sampling_for_worker(self) -> SamplingParams:
        """Sampling parameters of this sequence alone.

        It has its own seed, and prompt log probabilities only if it computes them.
        """
        params, search = self.request.sampling, self.request.search
        if search is not None:
            # The length limit is the scheduler's; the worker reads none.
            num_logprobs = max(search.num_candidates, params.logprobs or 0)
            params = params.with_updates(n=1, best_of=None, max_tokens=None, logprobs=num_logprobs)
        if params.num_sequences == 1 and params.prompt_logprobs is None:
            return params
        assert params.seed is not None
        return params.with_updates(
            n=1,
            best_of=None,
            seed=sequence_seed(params.seed, self.index),
            prompt_logprobs=params.prompt_logprobs if self.computes_prompt_logprobs else None,
        )

    def fork(self, index: int, token_id: int) -> "Sequence":
        """A beam that continues this one's tokens with another token. It is not queued yet."""
        tokens = self.tokens[:]
        tokens.append(token_id)
        return Sequence(
            self.request,
            index,
            tokens,
            Status.HELD,
            num_cached_tokens=self.num_cached_tokens,
            first_run_time=self.first_run_time,
            first_token_time=self.first_token_time,
        )

    @property
    def computes_prompt_logprobs(self) -> bool:
        request = self.request
        return request.wants_prompt_logprobs and request.unfinished[0] is self


def new_request(
    output_buffer: OutputBuffer, message: GenerateRequest, share: Share, arrival: int, now: float
) -> Request:
    """Make a request and its sequences.

    Sequences with generated tokens, and the first unfinished one, wait for a slot. The others await
    its prefill.
    """
    sampling = message.sampling
    search = None
    if sampling.use_beam_search:
        search = BeamSearch(
            sampling.num_sequences,
            sampling.length_penalty,
            sampling.early_stopping,
            sampling.logprobs or 0,
        )
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
        grammar=message.grammar,
        search=search,
    )
    if search is not None:  # the first step makes the other beams
        search.unwanted.update(message.finished_indexes)
        tokens = array("i", message.token_ids)
        request.sequences.append(Sequence(request, 0, tokens, Status.WAITING))
        return request
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
        # A queue of long prompts times 128 would exceed the memory. A sequence that awaits the
        # prefill has no tokens, and copies the prompt from the first one, whatever its status.
        has_prompt = index == 0 or status is Status.WAITING
        packed = message.token_ids + emitted[index] if has_prompt else b""
        tokens = array("i", packed)
        request.sequences.append(Sequence(request, index, tokens, status, packed=packed))
    return request


def _max_token(*packed: bytes) -> int:
    return max(int(token_array(tokens).max()) for tokens in packed if tokens)


def sequence_seed(seed: int, index: int) -> int:
    """Seed of sequence `index`, as a signed 64-bit integer.

    The first sequence has the request's seed. For the others, the seed is mixed with the index
    (splitmix64; Steele, Lea and Flood, 2014).
    """
    if index == 0:
        return seed
    mask = 2**64 - 1
    z = (seed + index * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    z ^= z >> 31
    return z - 2**64 if z >= 2**63 else z
