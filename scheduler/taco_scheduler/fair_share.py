"""Who has had how much: a virtual token counter for each tenant.

Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024): a counter grows with each
token that its tenant is served, divided by the tenant's weight, and whoever waits is served in
order of the counters. With each request a tenant is lifted to the least of the others, less a
bounded credit: whoever wants less than its share need not queue for a burst, and idle time earns no
more than that. (In the paper the credit is 0, and who has requests running, but none waiting, is
idle.)
"""

import numpy as np

from taco_proto.requests import LOW_PRIORITY, Tenant
from taco_proto.steps import IntArray

# What a token costs, in tokens of a prompt. An output token takes a row of a step of its own.
OUTPUT_COST = 2.0
CACHED_COST = 0.1
# How far a tenant may stand before all others: a burst of so many tokens goes first.
BURST_CREDIT = 8192.0
MIN_CAPACITY = 16


class Share:
    """One tenant's part of the engine, interactive and offline work apart.

    Attributes:
        index: its row in the columns of `FairShare`.
        charge: what its counter holds beside its answers.
        num_requests: those of it that have not ended.
    """

    __slots__ = ("_owner", "charge", "index", "is_offline", "num_requests", "weight")

    def __init__(self, owner: "FairShare", index: int, *, is_offline: bool) -> None:
        self.index = index
        self.is_offline = is_offline
        self.weight = 1.0
        self.charge = 0.0
        self.num_requests = 0
        self._owner = owner

    @property
    def counter(self) -> float:
        """What it has been served, in tokens of a prompt divided by its weight."""
        return self._owner.counter(self)


class FairShare:
    """The counters of all tenants, for all queues that share one engine.

    Offline work has counters of its own: it stands behind all other work, and a counter that stood
    still for hours must not become the least one of tenants that are served.

    Attributes:
        num_outputs: tokens of answers, by a share's index.
        counts_outputs: somebody asks for them: of a single tenant without a quota they say nothing.
    """

    def __init__(self) -> None:
        self.num_outputs = np.zeros(MIN_CAPACITY, np.int64)
        self._shares: dict[tuple[str, bool], Share] = {}
        self._active: dict[bool, set[Share]] = {False: set(), True: set()}
        self._last_left = {False: 0.0, True: 0.0}
        self._is_metered = False
        self.counts_outputs = False

    def meter(self) -> None:
        """From now on `outputs_of` is asked."""
        self._is_metered = self.counts_outputs = True

    @property
    def has_rivals(self) -> bool:
        """There are requests of more than one share."""
        return len(self._active[False]) + len(self._active[True]) > 1

    def share_of(self, tenant: Tenant, priority: int) -> Share:
        """The share that a request belongs to; the tenant's weight is the latest that was told."""
        is_offline = priority >= LOW_PRIORITY
        share = self._shares.get((tenant.name, is_offline))
        if share is None:
            share = self._shares[tenant.name, is_offline] = self._new_share(is_offline)
        if share.weight != tenant.weight:  # what it has had, it had at the old price
            before, share.weight = self.counter(share), tenant.weight
            share.charge += before - self.counter(share)
        return share

    def counter(self, share: Share) -> float:
        """See `Share`. It never goes down."""
        return share.charge + float(self.num_outputs[share.index]) * OUTPUT_COST / share.weight

    def enter(self, share: Share) -> None:
        """A request has come. Its tenant is lifted to what the least of the others has had, less
        the credit that it may have.
        """
        active = self._active[share.is_offline]
        others = (other.counter for other in active if other is not share)
        floor = min(others, default=self._last_left[share.is_offline])
        share.charge += max(0.0, floor - BURST_CREDIT / share.weight - share.counter)
        share.num_requests += 1
        active.add(share)
        self.counts_outputs = self._is_metered or self.has_rivals

    def leave(self, share: Share) -> None:
        """A request has ended."""
        share.num_requests -= 1
        if share.num_requests == 0:
            self._active[share.is_offline].remove(share)
            self.counts_outputs = self._is_metered or self.has_rivals
            self._last_left[share.is_offline] = share.counter

    def charge_prompt(self, share: Share, num_tokens: int, num_cached: int) -> None:
        """A sequence is admitted for the first time. What preemptions compute again costs nobody:
        they are not the tenant's choice.
        """
        cost = num_tokens - num_cached + CACHED_COST * num_cached
        share.charge += cost / share.weight

    def charge_outputs(self, indexes: IntArray, num_tokens: IntArray) -> None:
        """Tokens that sequences got, by the index of their share; a share may be there often."""
        np.add.at(self.num_outputs, indexes, num_tokens)

    def outputs_of(self, tenant: Tenant) -> int:
        """All tokens of a tenant's answers since `meter` was called."""
        shares = [self._shares.get((tenant.name, is_offline)) for is_offline in (False, True)]
        return sum(int(self.num_outputs[share.index]) for share in shares if share is not None)

    def _new_share(self, is_offline: bool) -> Share:
        index = len(self._shares)
        if index == len(self.num_outputs):
            self.num_outputs = np.concatenate([self.num_outputs, np.zeros(index, np.int64)])
        return Share(self, index, is_offline=is_offline)
