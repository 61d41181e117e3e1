"""Which scheduler a request goes to: the one that would be done with it first.

The rule is that of a scheduler among its replicas (scheduler/taco_scheduler/core/router.py), with
estimates in place of knowledge: load and cached prefixes as the scheduler's record in Redis has
them, and beside them what this gateway has sent there since that was written.
"""

import random
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Protocol, TypeVar

from taco_common.prefix_hashes import num_known_blocks, prompt_hashes
from taco_common.rendezvous import home_of
from taco_proto.registry import DECODE_TOKENS, LIFETIME_SECONDS, SchedulerRecord
from taco_proto.requests import GenerateRequest, ModelInfo

TOKEN_BYTES = 4
# Blocks of prompts that this gateway sent of late, for each scheduler: about a million tokens.
MAX_SENT_BLOCKS = 2**16


class SchedulerView:
    """What this gateway knows of one scheduler. Time is monotonic seconds and only passed in.

    Args:
        hash_key: for hashes of prefixes as long as there is no record.
    """

    def __init__(self, hash_key: bytes) -> None:
        self.hash_key = hash_key
        self.record: SchedulerRecord | None = None
        self._written_at = float("-inf")
        self._sent: deque[tuple[float, int]] = deque()
        self._sent_load = 0
        self._sent_blocks: OrderedDict[bytes, float] = OrderedDict()

    def update(self, record: SchedulerRecord, written_at: float) -> None:
        """A record was read; what was sent before it was written is known to it."""
        if record.hash_key != self.hash_key:
            self.hash_key = record.hash_key
            self._sent_blocks.clear()
        self.record = record
        self._written_at = written_at
        self._forget_sent(written_at)
        while self._sent_blocks and next(iter(self._sent_blocks.values())) < written_at:
            self._sent_blocks.popitem(last=False)

    def is_fresh(self, now: float) -> bool:
        return now - self._written_at <= LIFETIME_SECONDS

    @property
    def load(self) -> float:
        """Estimated work of one of its workers, in prompt tokens; only if it is fresh."""
        assert self.record is not None
        return (self.record.load + self._sent_load) / self.num_workers

    @property
    def num_workers(self) -> int:
        return max(1, self.record.num_workers) if self.record is not None else 1

    def num_cached_blocks(self, hashes: Sequence[bytes]) -> int:
        """Blocks of a prompt that are cached there, or were sent there to be computed."""
        written = self.record.prefixes if self.record is not None else frozenset()
        return max(num_known_blocks(hashes, written), num_known_blocks(hashes, self._sent_blocks))

    def note_sent(self, hashes: Sequence[bytes], load: int, now: float) -> None:
        """A request goes there that adds so much work."""
        self._forget_sent(now - LIFETIME_SECONDS)  # by then it has a newer record, or none counts
        self._sent.append((now, load))
        self._sent_load += load
        for value in hashes:
            self._sent_blocks[value] = now
            self._sent_blocks.move_to_end(value)
        while len(self._sent_blocks) > MAX_SENT_BLOCKS:
            self._sent_blocks.popitem(last=False)

    def _forget_sent(self, before: float) -> None:
        while self._sent and self._sent[0][0] < before:
            self._sent_load -= self._sent.popleft()[1]


class Target(Protocol):
    """A scheduler that takes requests.

    Attributes:
        address: the same for all gateways.
        own_load: work of this gateway's own requests there.
    """

    @property
    def address(self) -> str: ...

    @property
    def view(self) -> SchedulerView: ...

    @property
    def info(self) -> ModelInfo | None: ...

    @property
    def own_load(self) -> int: ...


AnyTarget = TypeVar("AnyTarget", bound=Target)


def place(
    request: GenerateRequest, targets: Sequence[AnyTarget], now: float
) -> tuple[AnyTarget, int]:
    """The target with the least estimated work, what the request itself is there included, and the
    tokens that it is expected to compute there. The target's view takes note of it.

    Requests with the same `prompt_cache_key` go to one target, unless that is behind by more than
    the whole prompt.

    Where any record is missing or old, loads of all are those that this gateway knows itself: an
    old figure would make a scheduler look idle, or busy, for ever.

    Args:
        request: with the tokens that its client has seen already.
        targets: one or more that serve the model.
    """
    targets = _without_short_ones(request, targets)
    if len(targets) == 1:
        return targets[0], 0
    use_records = all(target.view.is_fresh(now) for target in targets)
    num_bytes = len(request.token_ids) + sum(map(len, request.emitted_token_ids))
    num_tokens = num_bytes // TOKEN_BYTES
    chains: dict[tuple[bytes, int], list[bytes]] = {}
    scores: list[tuple[float, float, int]] = []
    for target in targets:
        view, block_size = target.view, _block_size(target)
        hashes = chains.setdefault((view.hash_key, block_size), [])
        if not hashes and request.sampling.prompt_logprobs is None:
            hashes += _hashes(request, view.hash_key, block_size)
        num_missing = num_tokens - view.num_cached_blocks(hashes) * block_size
        load = view.load if use_records else target.own_load / view.num_workers
        scores.append((load + num_missing, random.random(), num_missing))
    best = min(range(len(targets)), key=lambda i: scores[i])
    if request.prompt_cache_key:
        indexes = {target.address: i for i, target in enumerate(targets)}
        home = indexes[home_of(request.prompt_cache_key, request.cache_salt, indexes)]
        if scores[home][0] <= scores[best][0] + num_tokens:
            best = home
    chosen, num_missing = targets[best], scores[best][2]
    hashes = chains[chosen.view.hash_key, _block_size(chosen)]
    num_sequences = request.sampling.num_sequences
    chosen.view.note_sent(hashes, num_missing + DECODE_TOKENS * num_sequences, now)
    return chosen, num_missing


def _without_short_ones(
    request: GenerateRequest, targets: Sequence[AnyTarget]
) -> Sequence[AnyTarget]:
    """Those that end the request's sequences as late as any of them does."""
    if len(targets) == 1:
        return targets
    assert request.sampling.max_tokens is not None
    wanted = len(request.token_ids) // TOKEN_BYTES + request.sampling.max_tokens
    lengths = [min(wanted, t.info.max_model_len) if t.info is not None else 0 for t in targets]
    longest = max(lengths)
    return [t for t, length in zip(targets, lengths, strict=True) if length == longest]


def _block_size(target: Target) -> int:
    return max(1, target.info.block_size) if target.info is not None else 1


def _hashes(request: GenerateRequest, key: bytes, block_size: int) -> list[bytes]:
    # What a sequence has beyond the prompt counts where it is the only one.
    emitted = request.emitted_token_ids
    tokens = request.token_ids + (emitted[0] if len(emitted) == 1 else b"")
    block_bytes = block_size * TOKEN_BYTES
    return prompt_hashes(key, request.adapter, request.cache_salt, tokens, block_bytes)
