"""The admission queue by tenant: the backlog of each tenant, and the largest backlog."""

import heapq
import itertools
from collections import Counter
from typing import Generic, Protocol, TypeVar

from taco_proto.requests import Tenant
from taco_scheduler.admission.fair_share import Share

MIN_SWEEP = 64


class QueuedRequest(Protocol):
    """The fields of a request that admission control reads.

    Attributes:
        admitted: it has run, and did not lose its worker since.
        has_begun: a step was planned for it, on this worker or on an earlier one.
    """

    @property
    def share(self) -> Share: ...

    @property
    def tenant(self) -> Tenant: ...

    @property
    def num_prompt_tokens(self) -> int: ...

    @property
    def admitted(self) -> bool: ...

    @property
    def has_begun(self) -> bool: ...


RequestT = TypeVar("RequestT", bound=QueuedRequest)


class TenantBacklogs(Generic[RequestT]):
    """The requests that wait for their first step, grouped by tenant.

    Finds the tenant with the largest backlog without a search over all tenants.

    Attributes:
        num_requests: waiting requests of all tenants.
        num_tokens: prompt tokens of these requests.
    """

    def __init__(self, max_requests: int, max_tokens: int) -> None:
        self.num_requests = 0
        self.num_tokens = 0
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._backlogs: dict[Share, _Backlog[RequestT]] = {}
        # Tenants by backlog, the largest first. An entry holds the size when the backlog last grew.
        # A backlog that has shrunk since is corrected when its entry reaches the front.
        self._largest: list[tuple[bool, float, int, int, Share]] = []
        self._numbers = itertools.count(1)
        self._weights: dict[bool, Counter[float]] = {False: Counter(), True: Counter()}

    def add(self, request: RequestT) -> None:
        """Count a new request, or one that lost its worker."""
        share = request.share
        backlog = self._backlogs.get(share)
        if backlog is None:
            backlog = self._backlogs[share] = _Backlog(next(self._numbers), share.weight)
            self._count_weight(share, share.weight, 1)
        backlog.num_requests += 1
        backlog.num_tokens += request.num_prompt_tokens
        self.note_growth(share)
        if not request.has_begun:
            backlog.rejectable[request] = None
        self.num_requests += 1
        self.num_tokens += request.num_prompt_tokens

    def remove(self, request: RequestT) -> None:
        """Take out a request that runs or has ended."""
        backlog = self._backlogs[request.share]
        backlog.num_requests -= 1
        backlog.num_tokens -= request.num_prompt_tokens
        backlog.rejectable.pop(request, None)
        if not backlog.num_requests:
            del self._backlogs[request.share]
            self._count_weight(request.share, backlog.weight, -1)
        self.num_requests -= 1
        self.num_tokens -= request.num_prompt_tokens

    def tokens_of(self, share: Share) -> int:
        """Prompt tokens of a tenant's backlog."""
        backlog = self._backlogs.get(share)
        return 0 if backlog is None else backlog.num_tokens

    def weight_part(self, share: Share) -> float:
        """A tenant's weight over that of all tenants with a backlog, itself included.

        Offline tenants do not count against interactive ones.
        """
        backlog = self._backlogs.get(share)
        weights = [self._weights[False]] + [self._weights[True]] * share.is_offline
        total = sum(weight * count for counter in weights for weight, count in counter.items())
        total += share.weight - (backlog.weight if backlog is not None else 0.0)
        return share.weight / total

    def load(self, share: Share, requests: int = 0, tokens: int = 0) -> float:
        """A tenant's part of the queue limits over its weight, with additional requests."""
        backlog = self._backlogs.get(share)
        if backlog is not None:
            requests += backlog.num_requests
            tokens += backlog.num_tokens
        return max(requests / self._max_requests, tokens / self._max_tokens) / share.weight

    def note_growth(self, share: Share) -> None:
        """Update the order of backlogs after a tenant's backlog grew or its weight changed."""
        backlog = self._backlogs.get(share)
        if backlog is None:
            return
        if backlog.weight != share.weight:
            self._count_weight(share, backlog.weight, -1)
            self._count_weight(share, share.weight, 1)
            backlog.weight = share.weight
        backlog.entry = next(self._numbers)
        heapq.heappush(self._largest, self._entry(share, backlog))
        if len(self._largest) > max(MIN_SWEEP, 2 * len(self._backlogs)):
            self._largest = [self._entry(*item) for item in self._backlogs.items()]
            heapq.heapify(self._largest)

    def largest(self) -> Share:
        """The tenant with the largest backlog by its weight; offline tenants come first."""
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

    def latest(self, share: Share, num_requests: int, num_tokens: int) -> list[RequestT]:
        """A tenant's newest requests that free the given places and tokens.

        Returns:
            An empty list if all requests that may be rejected do not suffice.
        """
        found: list[RequestT] = []
        for request in reversed(self._backlogs[share].rejectable):
            if num_requests <= 0 and num_tokens <= 0:
                break
            found.append(request)
            num_requests -= 1
            num_tokens -= request.num_prompt_tokens
        return found if num_requests <= 0 and num_tokens <= 0 else []

    def _entry(
        self, share: Share, backlog: "_Backlog[RequestT]"
    ) -> tuple[bool, float, int, int, Share]:
        return (not share.is_offline, -self.load(share), backlog.number, backlog.entry, share)

    def _count_weight(self, share: Share, weight: float, sign: int) -> None:
        weights = self._weights[share.is_offline]
        weights[weight] += sign
        if not weights[weight]:
            del weights[weight]


class _Backlog(Generic[RequestT]):
    """One tenant's waiting requests.

    Attributes:
        number: breaks ties between equal loads: the lower number comes first.
        weight: the tenant's weight when it was last counted.
        entry: number of the tenant's valid heap entry.
        rejectable: requests that have not begun, in order of arrival.
    """

    __slots__ = ("entry", "num_requests", "num_tokens", "number", "rejectable", "weight")

    def __init__(self, number: int, weight: float) -> None:
        self.number = number
        self.weight = weight
        self.entry = 0
        self.num_requests = 0
        self.num_tokens = 0
        self.rejectable: dict[RequestT, None] = {}
