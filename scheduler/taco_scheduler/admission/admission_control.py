"""The requests that have not run yet: how many there may be, and how long they take to leave."""

import heapq
import itertools
from collections import Counter, deque

from taco_proto.limits import MAX_RETRY_SECONDS
from taco_scheduler.admission.fair_share import Share
from taco_scheduler.admission.rejections import RejectedError, RejectionReason
from taco_scheduler.state.sequence import Request

# The rate is that of the latest seconds in which somebody waited.
RATE_SECONDS = 5.0
SAMPLE_SECONDS = 0.25
MIN_SWEEP = 64


class AdmissionQueue:
    """Bounds on what waits, by requests and by tokens, shared by tenants.

    As long as there is room, anybody may use all of it. When it is full, a tenant that has less of
    it (by its weight) than another takes the other's latest request's place; so whoever floods it
    is refused, and nobody else. Interactive work takes the place of offline work in any case.

    A request that has given tokens already, and waits since it lost its worker, is counted but
    never refused.
    """

    def __init__(self, max_requests: int, max_tokens: int) -> None:
        self.num_requests = 0
        self.num_tokens = 0
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._backlogs: dict[Share, _Backlog] = {}
        # Tenants by what they have waiting, the largest first. An entry holds what that was when it
        # last grew: what became less is found out when it comes to the front.
        self._largest: list[tuple[bool, float, int, int, Share]] = []
        self._numbers = itertools.count(1)
        self._weights: dict[bool, Counter[float]] = {False: Counter(), True: Counter()}
        self._rate = DrainRate()

    def enter(self, request: Request) -> None:
        """A request has come, or has lost its worker."""
        share = request.share
        backlog = self._backlogs.get(share)
        if backlog is None:
            backlog = self._backlogs[share] = _Backlog(next(self._numbers), share.weight)
            self._count_weight(share, share.weight, 1)
        backlog.num_requests += 1
        backlog.num_tokens += request.num_prompt_tokens
        self._note_growth(share, backlog)
        if not request.has_begun:
            backlog.fresh[request] = None
        self.num_requests += 1
        self.num_tokens += request.num_prompt_tokens

    def leave(self, request: Request, *, runs: bool) -> None:
        """A request runs now, or has ended."""
        backlog = self._backlogs[request.share]
        backlog.num_requests -= 1
        backlog.num_tokens -= request.num_prompt_tokens
        backlog.fresh.pop(request, None)
        if not backlog.num_requests:
            del self._backlogs[request.share]
            self._count_weight(request.share, backlog.weight, -1)
        self.num_requests -= 1
        self.num_tokens -= request.num_prompt_tokens
        if runs:
            self._rate.count(request.num_prompt_tokens)

    def tick(self, now: float) -> None:
        """To be called often: measures for how long somebody has been waiting."""
        self._rate.tick(now, somebody_waits=self.num_requests > 0)

    def make_room(self, share: Share, num_tokens: int) -> list[Request]:
        """Whom to refuse so that a new request can enter.

        Raises:
            RejectedError: 429, the new one itself.
        """
        missing_requests = self.num_requests + 1 - self._max_requests
        missing_tokens = self.num_tokens + num_tokens - self._max_tokens
        if not self.num_requests or (missing_requests <= 0 and missing_tokens <= 0):
            return []
        if (backlog := self._backlogs.get(share)) is not None:
            self._note_growth(share, backlog)  # its weight may have become less with this request
        largest = self._largest_share()
        mine = self._load(share, 1, num_tokens)
        if largest is not share and largest.is_offline >= share.is_offline:
            victims = self._latest(largest, missing_requests, missing_tokens)
            taken = sum(r.num_prompt_tokens for r in victims)
            outranked = largest.is_offline > share.is_offline
            if victims and (outranked or self._load(largest, -len(victims), -taken) >= mine):
                return victims
        raise self.refusal(share)

    def refusal(self, share: Share) -> RejectedError:
        """What a request of the tenant is told that finds no place."""
        message = f"{self.num_requests} requests with {self.num_tokens} tokens are waiting already"
        wait = self.seconds_to_wait(share)
        return RejectedError(429, message, retry_after=wait, reason=RejectionReason.QUEUE_FULL)

    def seconds_to_wait(self, share: Share) -> float:
        """How long what a tenant has waiting takes to leave, at the rate at which prompts left the
        lobby in the latest seconds, of which it gets its part by weight.

        Cached tokens count on both sides, so that their part of the prompts cancels out. While
        nothing is known the answer is 0.
        """
        rate = self._rate.tokens_per_second()
        if rate is None:
            return 0.0
        backlog = self._backlogs.get(share)
        weights = [self._weights[False]] + [self._weights[True]] * share.is_offline
        total = sum(weight * count for counter in weights for weight, count in counter.items())
        total += share.weight - (backlog.weight if backlog is not None else 0.0)
        part = share.weight / total
        num_tokens = backlog.num_tokens if backlog is not None else 0
        return num_tokens / (rate * part) if rate else MAX_RETRY_SECONDS

    def _load(self, share: Share, requests: int = 0, tokens: int = 0) -> float:
        """The part of the lobby that a tenant would have with so many more, over its weight."""
        backlog = self._backlogs.get(share)
        if backlog is not None:
            requests += backlog.num_requests
            tokens += backlog.num_tokens
        return max(requests / self._max_requests, tokens / self._max_tokens) / share.weight

    def _note_growth(self, share: Share, backlog: "_Backlog") -> None:
        """What the tenant has waiting may be more by its weight than its entry says."""
        if backlog.weight != share.weight:
            self._count_weight(share, backlog.weight, -1)
            self._count_weight(share, share.weight, 1)
            backlog.weight = share.weight
        backlog.entry = next(self._numbers)
        heapq.heappush(self._largest, self._entry(share, backlog))
        if len(self._largest) > max(MIN_SWEEP, 2 * len(self._backlogs)):
            self._largest = [self._entry(*item) for item in self._backlogs.items()]
            heapq.heapify(self._largest)

    def _entry(self, share: Share, backlog: "_Backlog") -> tuple[bool, float, int, int, Share]:
        return (not share.is_offline, -self._load(share), backlog.number, backlog.entry, share)

    def _largest_share(self) -> Share:
        """The tenant that has most waiting, by its weight, offline tenants first."""
        heap = self._largest
        while True:
            entry = heap[0]
            share = entry[-1]
            backlog = self._backlogs.get(share)
            if backlog is None or backlog.entry != entry[3]:
                heapq.heappop(heap)
            elif (current := self._entry(share, backlog)) != entry:
                heapq.heapreplace(heap, current)
            else:
                return share

    def _count_weight(self, share: Share, weight: float, sign: int) -> None:
        weights = self._weights[share.is_offline]
        weights[weight] += sign
        if not weights[weight]:
            del weights[weight]

    def _latest(self, share: Share, num_requests: int, num_tokens: int) -> list[Request]:
        """The latest requests of a tenant that make so much room; none if they are too few."""
        found: list[Request] = []
        for request in reversed(self._backlogs[share].fresh):
            if num_requests <= 0 and num_tokens <= 0:
                break
            found.append(request)
            num_requests -= 1
            num_tokens -= request.num_prompt_tokens
        return found if num_requests <= 0 and num_tokens <= 0 else []


class _Backlog:
    """What one tenant has waiting.

    Attributes:
        number: of two tenants with equal loads, the one with the lower number comes first.
        weight: of the tenant, when it was counted last.
        entry: number of its valid entry among the largest tenants.
        fresh: those that may be refused, in the order in which they came.
    """

    __slots__ = ("entry", "fresh", "num_requests", "num_tokens", "number", "weight")

    def __init__(self, number: int, weight: float) -> None:
        self.number = number
        self.weight = weight
        self.entry = 0
        self.num_requests = 0
        self.num_tokens = 0
        self.fresh: dict[Request, None] = {}


class DrainRate:
    """Tokens a second over the latest seconds in which somebody waited."""

    def __init__(self) -> None:
        self._busy_seconds = 0.0
        self._num_tokens = 0
        self._now: float | None = None
        self._samples: deque[tuple[float, int]] = deque([(0.0, 0)])

    def tick(self, now: float, *, somebody_waits: bool) -> None:
        if self._now is not None and somebody_waits:
            self._busy_seconds += max(0.0, now - self._now)
        self._now = now
        if self._busy_seconds - self._samples[-1][0] >= SAMPLE_SECONDS:
            self._samples.append((self._busy_seconds, self._num_tokens))
            while self._busy_seconds - self._samples[1][0] >= RATE_SECONDS:
                self._samples.popleft()

    def count(self, num_tokens: int) -> None:
        """So many have left."""
        self._num_tokens += num_tokens

    def tokens_per_second(self) -> float | None:
        """None: nobody has waited long enough to tell."""
        seconds, num_tokens = self._samples[0]
        elapsed = self._busy_seconds - seconds
        if elapsed < SAMPLE_SECONDS:
            return None
        return (self._num_tokens - num_tokens) / elapsed
