"""What tests ask of any cluster while they break it."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from support.patience import until
from support.streams import Answer, Body, Streams

MAX_TRIALS = 20


class WatchedCluster(ABC):
    """Attributes:
    answers: of all `streams`.
    """

    def __init__(self) -> None:
        self.answers: list[Answer] = []

    @abstractmethod
    def connect(self, bodies: Iterable[Body], gateway: int = 0) -> Streams:
        """Streams that have not begun."""

    @abstractmethod
    async def num_workers(self) -> int:
        """0 also if no gateway answers."""

    @abstractmethod
    async def running(self, worker: str) -> int:
        """Sequences that a worker runs; 0 if it is not attached."""

    def streams(self, bodies: Iterable[Body], gateway: int = 0) -> Streams:
        streams = self.connect(bodies, gateway)
        self.answers += streams.answers
        return streams

    @asynccontextmanager
    async def busy(self, bodies: Iterable[Body], *workers: str) -> AsyncIterator[Streams]:
        """Streams in mid-answer, of which each of the workers runs some.

        A worker may be through with its own before another one has begun: then all are asked again.
        """
        bodies = list(bodies)
        for _ in range(MAX_TRIALS):
            async with self.streams(bodies) as streams:
                await streams.reach(5)
                if all([await self.running(worker) for worker in workers]):
                    yield streams
                    return
            del self.answers[-len(bodies) :]
        raise AssertionError(f"no streams ran on {' and '.join(workers)} at a time")

    async def until_workers(self, count: int) -> None:
        async def is_so() -> bool:
            return await self.num_workers() == count

        await until(is_so, f"{count} workers")
