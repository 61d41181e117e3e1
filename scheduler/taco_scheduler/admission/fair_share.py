"""Fair share: a virtual token counter for each tenant decides the order of waiting requests.

Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024). A counter grows with each
token that its tenant is served, divided by the tenant's weight. Waiting requests are served in
order of the counters. With each request, a tenant's counter is lifted to the least counter of the
other tenants, less a bounded credit. So a tenant that uses less than its share need not queue for a
burst, and idle time earns no more than the credit. (In the paper, the credit is 0, and a tenant
with running requests only is idle.)
"""

import heapq
import itertools
import weakref

import numpy as np
import numpy.typing as npt

from taco_proto.requests import LOW_PRIORITY, Tenant
from taco_proto.steps import IntArray

FloatArray = npt.NDArray[np.float64]

# Cost of a token, in prompt tokens. Each output token takes a row of a step.
OUTPUT_COST = 2.0
CACHED_COST = 0.1
# Tokens that a tenant's counter may be behind all others: a burst of this size comes first.
BURST_CREDIT = 8192.0
MIN_CAPACITY = 16
# Maximum number of tenants without requests whose counters are remembered.
MAX_IDLE_SHARES = 256


class Share:
    """One tenant's share of the engine. Interactive and offline requests have separate shares.

    Attributes:
        index: its row in the columns of `FairShare`; -1 while it has no request.
        charge: the part of its counter that the columns do not hold.
        past_outputs: output tokens that the columns do not hold any more.
        num_requests: its requests that have not ended.
    """

    __slots__ = (
        "__weakref__",
        "_owner",
        "charge",
        "index",
        "is_offline",
        "num_requests",
        "past_outputs",
        "weight",
    )

    def __init__(self, owner: "FairShare", *, is_offline: bool) -> None:
        self.index = -1
        self.is_offline = is_offline
        self.weight = 1.0
        self.charge = 0.0
        self.past_outputs = 0
        self.num_requests = 0
        self._owner = owner

    @property
    def counter(self) -> float:
        """Tokens that the tenant was served, in prompt tokens, divided by its weight."""
        return self._owner.counter(self)

    @property
    def num_outputs(self) -> int:
        """Output tokens that were counted."""
        return self._owner.outputs_of(self)


class FairShare:
    """The counters of all tenants, shared by the queues of all replicas.

    Offline requests have separate counters. They come after all interactive requests, so their
    counters may not change for hours, and must not become the least counter of the others.

    Tenants with requests have a row in the columns. A tenant without requests is forgotten once its
    counter would not matter on its return. If too many are remembered, the tenant with the least
    counter is forgotten first, because it loses least.

    Attributes:
        num_outputs: int64, output tokens since a share got its row, by the share's index.
        charges: float64, the rest of each share's counter.
        weights: float64.
        is_offline: bool.
        counts_outputs: output tokens are counted: there are several tenants, or a rate limit.
    """

    def __init__(self) -> None:
        self.num_outputs = np.zeros(MIN_CAPACITY, np.int64)
        self.charges = np.zeros(MIN_CAPACITY, np.float64)
        self.weights = np.ones(MIN_CAPACITY, np.float64)
        self.is_offline = np.zeros(MIN_CAPACITY, np.bool_)
        self._free_rows = list(range(MIN_CAPACITY))[::-1]
        # Requests hold the shares of active tenants, `_idle` holds those that are remembered.
        self._shares: weakref.WeakValueDictionary[tuple[str, bool], Share] = (
            weakref.WeakValueDictionary()
        )
        self._active = {kind: _CounterHeap() for kind in (False, True)}
        self._idle = {kind: _CounterHeap() for kind in (False, True)}
        self._last_left = {False: 0.0, True: 0.0}
        self._is_metered = False
        self.counts_outputs = False

    def meter(self) -> None:
        """Count output tokens from now on: a rate limit needs them."""
        self._is_metered = self.counts_outputs = True

    @property
    def has_several_tenants(self) -> bool:
        """Whether more than one share has requests."""
        return len(self._active[False]) + len(self._active[True]) > 1

    @property
    def num_shares(self) -> int:
        """Known shares; a tenant may have an interactive and an offline one."""
        return len(self._shares)

    def share_of(self, tenant: Tenant, priority: int) -> Share:
        """The share of a request's tenant, with the weight that this request brought.

        A share that does not `enter` is forgotten with the last reference to it.
        """
        is_offline = priority >= LOW_PRIORITY
        share = self._shares.get((tenant.name, is_offline))
        if share is None:
            share = self._shares[tenant.name, is_offline] = Share(self, is_offline=is_offline)
        if share.weight != tenant.weight:  # earlier tokens keep their old price
            before = share.counter
            self._fold_outputs(share)
            share.weight = tenant.weight
            if share.index >= 0:
                self.charges[share.index] = before
                self.weights[share.index] = tenant.weight
        return share

    def shares_of(self, tenant: Tenant) -> list[Share]:
        """A tenant's known shares."""
        shares = [self._shares.get((tenant.name, is_offline)) for is_offline in (False, True)]
        return [share for share in shares if share is not None]

    def counter(self, share: Share) -> float:
        """See `Share`. It never goes down."""
        row = share.index
        if row < 0:
            return share.charge
        return float(self.charges[row] + self.num_outputs[row] * OUTPUT_COST / share.weight)

    def outputs_of(self, share: Share) -> int:
        """See `Share.num_outputs`."""
        row = share.index
        return share.past_outputs + (int(self.num_outputs[row]) if row >= 0 else 0)

    def enter(self, share: Share) -> None:
        """Count a new request. Its share's counter is lifted to the least of the others, less the
        credit.
        """
        active = self._active[share.is_offline]
        floor = active.least(share)
        if floor is None:
            floor = self._last_left[share.is_offline]
        lift = max(0.0, floor - BURST_CREDIT / share.weight - share.counter)
        if share.num_requests == 0:
            self._idle[share.is_offline].discard(share)
            share.charge += lift
            self._take_row(share)
            active.add(share)
        else:
            self.charges[share.index] += lift
        share.num_requests += 1
        self.counts_outputs = self._is_metered or self.has_several_tenants

    def leave(self, share: Share) -> None:
        """Count a request that has ended."""
        share.num_requests -= 1
        if share.num_requests == 0:
            active, idle = self._active[share.is_offline], self._idle[share.is_offline]
            active.discard(share)
            self.counts_outputs = self._is_metered or self.has_several_tenants
            self._last_left[share.is_offline] = share.charge = share.counter
            self._fold_outputs(share)
            self._free_rows.append(share.index)
            share.index = -1
            idle.add(share)
            self._forget_idle(share.is_offline)

    def charge_prompt(self, share: Share, num_tokens: int, num_cached: int) -> None:
        """Charge the prompt of a sequence that runs for the first time.

        Tokens computed again after a preemption are not charged.
        """
        cost = (num_tokens - num_cached + CACHED_COST * num_cached) / share.weight
        if share.index >= 0:
            self.charges[share.index] += cost
        else:
            share.charge += cost

    def charge_outputs(self, indexes: IntArray, num_tokens: IntArray) -> None:
        """Charge output tokens by the index of each share; an index may occur several times."""
        np.add.at(self.num_outputs, indexes, num_tokens)

    def counters(self, indexes: IntArray) -> FloatArray:
        """Counters of active shares by their indexes, float64."""
        outputs = self.num_outputs[indexes] * OUTPUT_COST
        return self.charges[indexes] + outputs / self.weights[indexes]

    def _forget_idle(self, is_offline: bool) -> None:
        """Forget idle shares whose counters would be lifted on their return, and those above the
        maximum number.
        """
        idle = self._idle[is_offline]
        floor = self._active[is_offline].least()
        if floor is None:
            floor = self._last_left[is_offline]
        while (share := idle.first()) is not None and (
            len(idle) > MAX_IDLE_SHARES or share.charge <= floor - BURST_CREDIT / share.weight
        ):
            idle.discard(share)

    def _fold_outputs(self, share: Share) -> None:
        """Move the output tokens of a share's row into the share."""
        if share.index >= 0:
            share.past_outputs += int(self.num_outputs[share.index])
            self.num_outputs[share.index] = 0

    def _take_row(self, share: Share) -> None:
        if not self._free_rows:
            size = len(self.num_outputs)
            self._free_rows = list(range(size, 2 * size))[::-1]
            for name in ("num_outputs", "charges", "weights", "is_offline"):
                column = getattr(self, name)
                setattr(self, name, np.concatenate([column, np.zeros_like(column)]))
        row = share.index = self._free_rows.pop()
        self.num_outputs[row] = 0
        self.charges[row] = share.charge
        self.weights[row] = share.weight
        self.is_offline[row] = share.is_offline


class _CounterHeap:
    """A heap of shares by their counters.

    Counters only grow, so an entry may hold an older counter: the first entry is either the least
    or moves down. The entry of a discarded share remains until it comes first, or until such
    entries outnumber the others.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Share]] = []
        self._members: dict[Share, int] = {}  # the number of each one's entry
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        return len(self._members)

    def add(self, share: Share) -> None:
        number = self._members[share] = next(self._numbers)
        heapq.heappush(self._heap, (share.counter, number, share))
        if len(self._heap) > max(MIN_CAPACITY, 2 * len(self._members)):
            self._heap = [entry for entry in self._heap if self._members.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)

    def discard(self, share: Share) -> None:
        self._members.pop(share, None)

    def first(self) -> Share | None:
        """The share with the least counter."""
        heap = self._heap
        while heap:
            key, number, share = heap[0]
            if self._members.get(share) != number:
                heapq.heappop(heap)
            elif (counter := share.counter) != key:
                heapq.heapreplace(heap, (counter, number, share))
            else:
                return share
        return None

    def least(self, but: Share | None = None) -> float | None:
        """The least counter of all shares except `but`; None if there is no other share."""
        first = self.first()
        if first is None or first is not but:
            return None if first is None else first.counter
        entry = heapq.heappop(self._heap)
        second = self.first()
        heapq.heappush(self._heap, entry)
        return None if second is None else second.counter
