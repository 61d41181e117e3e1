"""The whole engine in this process: a scheduler with a worker in a thread, and one client."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from support.engine_driver import Received
from support.patience import PATIENCE_SECONDS
from taco_proto import scheduler_pb2 as pb
from taco_proto.config import SchedulerConfig
from taco_proto.output_batch import output_logprobs, output_rows
from taco_proto.requests import GenerateRequest
from taco_scheduler.server.service import SchedulerService
from taco_scheduler.server.worker_links import StepExecutor


@dataclass
class Generated(Received):
    """`gaps`: by how much each token's two best log probabilities differ, if asked for two."""

    gaps: dict[tuple[int, int], list[float]] = field(default_factory=dict)

    def add(self, batch: pb.OutputBatch) -> None:
        super().add(batch)
        columns = output_logprobs(batch)
        if columns is None:
            return
        rows = columns.rows()
        for handle, index, count, *_ in output_rows(batch):
            for _, (_, logprobs, _) in zip(range(count), rows, strict=False):
                if len(logprobs) > 2:
                    self.gaps.setdefault((handle, index), []).append(logprobs[1] - logprobs[2])


@asynccontextmanager
async def serve(executor: StepExecutor, **config: object) -> AsyncIterator[SchedulerService]:
    """`config` holds fields of SchedulerConfig."""
    settings = {"log_stats": False, **config}
    service = SchedulerService(SchedulerConfig(**settings))  # type: ignore[arg-type]
    await service.start()
    try:
        service.attach_local(executor)
        yield service
    finally:
        await service.stop()


async def generate(service: SchedulerService, requests: Sequence[GenerateRequest]) -> Generated:
    """Submit all at once and wait for the end of all; handles must differ."""
    session = service.connect("test")
    received = Generated()
    waiting = {(request.handle, i) for request in requests for i in range(request.sampling.n)}
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            for request in requests:
                session.submit(request)
            while not waiting <= received.reasons.keys() | _failed(received, waiting):
                received.add(await session.next_batch())
    finally:
        session.close()
    return received


async def generate_beside(
    service: SchedulerService, healthy: Sequence[GenerateRequest], mixed: Sequence[GenerateRequest]
) -> tuple[Generated, Generated, Generated]:
    """Submit requests alone, among others, and alone again, which must change none of their tokens.

    Args:
        mixed: the healthy requests and others, which may fail.

    Returns:
        What each of the three calls gave.
    """
    alone = await generate(service, healthy)
    assert not alone.errors
    assert alone.reasons.keys() == {(r.handle, i) for r in healthy for i in range(r.sampling.n)}
    together = await generate(service, mixed)
    after = await generate(service, healthy)  # in the blocks of those that failed
    assert together.tokens.items() >= alone.tokens.items()
    assert together.reasons.items() >= alone.reasons.items()
    assert (after.tokens, after.reasons) == (alone.tokens, alone.reasons)
    return alone, together, after


def _failed(received: Received, keys: set[tuple[int, int]]) -> set[tuple[int, int]]:
    return {key for key in keys if key[0] in received.errors}
