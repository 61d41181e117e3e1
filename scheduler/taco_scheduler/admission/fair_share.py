"""Who has had how much: a virtual token counter for each tenant.

Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024): a counter grows with each
token that its tenant is served, divided by the tenant's weight, and whoever waits is served in
order of the counters. With each request a tenant is lifted to the least of the others, less a
bounded credit: whoever wants less than its share need not queue for a burst, and idle time earns no
more than that. (In the paper the credit is 0, and who has requests running, but none waiting, is
idle.)
"""

import heapq
import itertools
import weakref

import numpy as np
import numpy.typing as npt

from taco_proto.requests import LOW_PRIORITY, Tenant
from taco_proto.steps import IntArray

FloatArray = npt.NDArray[np.float64]

# What a token costs, in tokens of a prompt. An output token takes a row of a step of its own.
OUTPUT_COST = 2.0
CACHED_COST = 0.1
# How far a tenant may stand before all others: a burst of so many tokens goes first.
BURST_CREDIT = 8192.0
MIN_CAPACITY = 16
# Tenants without a request whose counters are remembered although they are not the largest ones.
MAX_IDLE_SHARES = 256


class Share:
    """One tenant's part of the engine, interactive and offline work apart.

    Attributes:
        index: its row in the columns of `FairShare`; -1 while it has no request.
        charge: what its counter holds beside what the columns hold.
        past_outputs: tokens of its answers that the columns do not hold any more.
        num_requests: those of it that have not ended.
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
        """What it has been served, in tokens of a prompt divided by its weight."""
        return self._owner.counter(self)

    @property
    def num_outputs(self) -> int:
        """Tokens of its answers, as far as they were counted."""
        return self._owner.outputs_of(self)


class FairShare:
    """The counters of all tenants, for all queues that share one engine.

    Offline work has counters of its own: it stands behind all other work, and a counter that stood
    still for hours must not become the least one of tenants that are served.

    Tenants with requests have a row in the columns. A tenant without requests is forgotten once its
    counter would not matter when it comes back, or if too many such tenants are remembered: then
    the one with the least counter first, which loses the least by it.

    Attributes:
        num_outputs: int64, tokens of answers since a share got its row, by the share's index.
        charges: float64, what a share's counter holds beside them.
        weights: float64.
        is_offline: bool.
        counts_outputs: somebody asks for them: of a single tenant without a quota they say nothing.
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
        """From now on the outputs of shares are asked for."""
        self._is_metered = self.counts_outputs = True

    @property
    def has_several_tenants(self) -> bool:
        """There are requests of more than one share."""
        return len(self._active[False]) + len(self._active[True]) > 1

    @property
    def num_shares(self) -> int:
        """Tenants that are known, interactive and offline work apart."""
        return len(self._shares)

    def share_of(self, tenant: Tenant, priority: int) -> Share:
        """The share that a request belongs to; the tenant's weight is the latest that was told.

        It is forgotten with the last reference to it if it does not `enter`.
        """
        is_offline = priority >= LOW_PRIORITY
        share = self._shares.get((tenant.name, is_offline))
        if share is None:
            share = self._shares[tenant.name, is_offline] = Share(self, is_offline=is_offline)
        if share.weight != tenant.weight:  # what it has had, it had at the old price
            before = share.counter
            self._settle(share)
            share.weight = tenant.weight
            if share.index >= 0:
                self.charges[share.index] = before
                self.weights[share.index] = tenant.weight
        return share

    def shares_of(self, tenant: Tenant) -> list[Share]:
        """Those of its shares that are known."""
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
        """A request has come. Its tenant is lifted to what the least of the others has had, less
        the credit that it may have.
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
        """A request has ended."""
        share.num_requests -= 1
        if share.num_requests == 0:
            active, idle = self._active[share.is_offline], self._idle[share.is_offline]
            active.discard(share)
            self.counts_outputs = self._is_metered or self.has_several_tenants
            self._last_left[share.is_offline] = share.charge = share.counter
            self._settle(share)
            self._free_rows.append(share.index)
            share.index = -1
            idle.add(share)
            self._forget_idle(share.is_offline)

    def charge_prompt(self, share: Share, num_tokens: int, num_cached: int) -> None:
        """A sequence is admitted for the first time. What preemptions compute again costs nobody:
        they are not the tenant's choice.
        """
        cost = (num_tokens - num_cached + CACHED_COST * num_cached) / share.weight
        if share.index >= 0:
            self.charges[share.index] += cost
        else:
            share.charge += cost

    def charge_outputs(self, indexes: IntArray, num_tokens: IntArray) -> None:
        """Tokens that sequences got, by the index of their share; a share may be there often."""
        np.add.at(self.num_outputs, indexes, num_tokens)

    def counters(self, indexes: IntArray) -> FloatArray:
        """float64, the counters of active shares by their indexes."""
        outputs = self.num_outputs[indexes] * OUTPUT_COST
        return self.charges[indexes] + outputs / self.weights[indexes]

    def _forget_idle(self, is_offline: bool) -> None:
        """Forgets shares without requests that would be lifted beyond their counters if they came
        back, and those beyond the bound.
        """
        idle = self._idle[is_offline]
        floor = self._active[is_offline].least()
        if floor is None:
            floor = self._last_left[is_offline]
        while (share := idle.first()) is not None and (
            len(idle) > MAX_IDLE_SHARES or share.charge <= floor - BURST_CREDIT / share.weight
        ):
            idle.discard(share)

    def _settle(self, share: Share) -> None:
        """Moves the outputs that its row has counted into the share."""
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
    """Shares by their counters.

    Counters only grow, so an entry holds the counter of when it was last looked at: the first entry
    is either the least or moves down. An entry of a share that was discarded stays until it comes
    to the front or until such entries are more than the others.
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
        """The least counter of all shares but one; None if there are no others."""
        first = self.first()
        if first is None or first is not but:
            return None if first is None else first.counter
        entry = heapq.heappop(self._heap)
        second = self.first()
        heapq.heappush(self._heap, entry)
        return None if second is None else second.counter
