"""Routes a request to the scheduler with the least estimated work, cached prefixes considered.

The rule is the one by which a scheduler routes among its replicas
(scheduler/taco_scheduler/core/router.py). The gateway only estimates: load and cached prefixes come
from the scheduler's record in Redis, plus the requests that this gateway sent after it was written.
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
# Prompt blocks that this gateway sent recently, for each scheduler: about a million tokens.
MAX_SENT_BLOCKS = 2**16


class SchedulerView:
    """Estimated load and cached prefixes of one scheduler. Times are monotonic seconds.

    Args:
        hash_key: key of the prefix hashes until a record brings another one.
    """

    def __init__(self, hash_key: bytes) -> None:
        self.hash_key = hash_key
        self.record: SchedulerRecord | None = None
        self._written_at = float("-inf")
        self._sent: deque[tuple[float, int]] = deque()
        self._sent_load = 0
        self._sent_blocks: OrderedDict[bytes, float] = OrderedDict()

    def update(self, record: SchedulerRecord, written_at: float) -> None:
        """Takes a new record, which covers the requests that were sent before it was written."""
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
        """Estimated work of one of its workers, in prompt tokens; only valid while `is_fresh`."""
        assert self.record is not None
        return (self.record.load + self._sent_load) / self.num_workers

    @property
    def num_workers(self) -> int:
        return max(1, self.record.num_workers) if self.record is not None else 1

    def num_cached_blocks(self, hashes: Sequence[bytes]) -> int:
        """Leading blocks of a prompt that are cached there, or were sent there to be computed."""
        written = self.record.prefixes if self.record is not None else frozenset()
        return max(num_known_blocks(hashes, written), num_known_blocks(hashes, self._sent_blocks))

    def note_sent(self, hashes: Sequence[bytes], load: int, now: float) -> None:
        """Records that a request was sent there which adds `load`, in prompt tokens."""
        self._forget_sent(now - LIFETIME_SECONDS)  # a newer record covers them, or none is fresh
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
    """A scheduler that accepts requests.

    Attributes:
        address: the same for all gateways.
        own_load: estimated work of this gateway's requests there, in prompt tokens.
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


def choose_scheduler(
    request: GenerateRequest, targets: Sequence[AnyTarget], now: float
) -> tuple[AnyTarget, int]:
    """Returns the target with the least estimated work, and the tokens to compute there.

    The work includes the request itself: its prompt tokens that are not cached there. The target's
    view records the request. Requests with the same `prompt_cache_key` go to one target, unless it
    is behind the best one by more than the whole prompt.

    If any record is missing or old, the loads of all targets are those of this gateway's own
    requests: an old record would make a scheduler look idle, or busy, for ever.

    Args:
        request: includes the tokens that its client has already received.
        targets: schedulers that serve the model; at least one.
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
    """The targets whose context length cuts the request's sequences latest."""
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
    # Generated tokens extend the prefix only if the request has one sequence.
    emitted = request.emitted_token_ids
    tokens = request.token_ids + (emitted[0] if len(emitted) == 1 else b"")
    block_bytes = block_size * TOKEN_BYTES
    return prompt_hashes(key, request.adapter, request.cache_salt, tokens, block_bytes)
