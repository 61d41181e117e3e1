"""Rebalancing: an idle replica takes waiting requests from the busiest one that has some for it."""

from taco_proto.registry import DECODE_TOKENS
from taco_scheduler.admission.validation import length_limit
from taco_scheduler.core.replica import Replica
from taco_scheduler.core.router import fits
from taco_scheduler.state.sequence import Request, Sequence

# Seconds between two searches for work.
REBALANCE_SECONDS = 0.05

# Waiting sequences of a replica that one search examines at most.
MAX_EXAMINED = 128


class Rebalancer:
    """Moves waiting requests to replicas with spare capacity."""

    def __init__(self, replicas: list[Replica]) -> None:
        """`replicas`: the attached ones; the caller changes the list."""
        self._replicas = replicas
        self._next_search_at = 0.0

    def search_now(self) -> None:
        """Search with the next plan: a replica came, or its license changed."""
        self._next_search_at = 0.0

    def steal_work(self, idle: Replica, now: float) -> None:
        """Move requests to a replica if it has spare capacity and would finish them sooner."""
        if len(self._replicas) < 2 or now < self._next_search_at or not idle.has_spare_capacity:
            return
        others = [
            each for each in self._replicas if each.waiting.num_sequences and each is not idle
        ]
        if not others:
            return
        self._next_search_at = now + REBALANCE_SECONDS
        for busy in sorted(others, key=lambda replica: replica.queued_load, reverse=True):
            if moved := find_movable(idle, busy):
                busy.detach(set(moved))
                for request in moved:
                    idle.attach(request)
                return


def find_movable(idle: Replica, busy: Replica) -> list[Request]:
    """The requests that wait at one replica and would be done sooner at another one."""
    moved: list[Request] = []
    load, ahead = idle.load, busy.load - busy.queued_load
    for sequence in busy.waiting.first(MAX_EXAMINED):
        there = sequence.num_queued_tokens
        if ahead + there > load and _may_move(sequence, idle, busy):
            here = idle.num_missing_tokens(sequence)
            if ahead + there > load + here:
                moved.append(sequence.request)
                load += here + DECODE_TOKENS
                continue
        ahead += there + DECODE_TOKENS
    return moved


def _may_move(sequence: Sequence, idle: Replica, busy: Replica) -> bool:
    request = sequence.request
    return (
        not request.is_on_worker
        and request.unfinished[0] is sequence  # examine each request once
        and fits(request, idle.info)
        and length_limit(request, idle.info) >= length_limit(request, busy.info)
    )
