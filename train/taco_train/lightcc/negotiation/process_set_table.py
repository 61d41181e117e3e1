"""The process sets of a job: which ranks are in which, as the coordinator has numbered them."""

from __future__ import annotations

from taco_train.lightcc.negotiation.requests import Kind, Request


class ProcessSetTable:
    """Ranks by the number of their process set; number 0 has all ranks of the job.

    Args:
        size: number of ranks in the job.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._ranks: dict[int, tuple[int, ...]] = {0: tuple(range(size))}
        self._next = 1

    def members(self, number: int) -> tuple[int, ...]:
        """Ranks of a process set; none where there is no such set."""
        return self._ranks.get(number, ())

    def error_of(self, request: Request) -> str:
        """Why a request to add or remove a process set is impossible; "": it is possible."""
        if request.kind is Kind.REMOVE_GROUP:
            known = request.root in self._ranks
            return "" if known else f"there is no process set {request.root}"
        if any(rank >= self._size for rank in request.ranks) or not request.ranks:
            return f"the ranks are {list(request.ranks)}; they must be from 0 to {self._size - 1}"
        if request.ranks in self._ranks.values():
            return f"a process set {list(request.ranks)} exists"
        return ""

    def change(self, request: Request) -> int:
        """Adds or removes a process set where the request says so.

        Returns:
            The number of the added set, otherwise -1.
        """
        if request.kind is Kind.ADD_GROUP:
            number = self._next
            self._next += 1
            self._ranks[number] = request.ranks
            return number
        if request.kind is Kind.REMOVE_GROUP:
            del self._ranks[request.root]
        return -1
