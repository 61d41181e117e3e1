"""Real schedulers on Unix sockets with exact workers in them, and requests for them."""

import asyncio
import threading
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from support.fake_worker import FakeWorker, generate, worker_info
from support.patience import PATIENCE_SECONDS, until
from taco_gateway.engine.scheduler_client import SchedulerClient
from taco_gateway.engine.token_stream import TokenStream
from taco_proto.config import SchedulerConfig, TlsConfig
from taco_proto.requests import GenerateRequest
from taco_proto.sampling_params import SamplingParams
from taco_proto.steps import StepOutput, StepPlan
from taco_scheduler.server.grpc_server import SchedulerServer
from taco_scheduler.server.service import SchedulerService
from taco_scheduler.state.sequence import sequence_seed

PROMPT = [3, 5, 7, 11, 13]


class GatedWorker(FakeWorker):
    """Runs a step only when it has leave to."""

    def __init__(self, **info: object) -> None:
        super().__init__(worker_info(**info))
        self._leave = threading.Semaphore(0)

    def execute(self, plan: StepPlan) -> StepOutput:
        self._leave.acquire()
        return super().execute(plan)

    def allow(self, num_steps: int) -> None:
        self._leave.release(num_steps)


@asynccontextmanager
async def scheduler(
    address: str, worker: FakeWorker | None, tls: TlsConfig | None = None
) -> AsyncIterator[SchedulerService]:
    """At the end it goes as if it was killed."""
    service = SchedulerService(SchedulerConfig(listen=address, log_stats=False, tls=tls))
    await service.start()
    if worker is not None:
        service.attach_local(worker)
    server = SchedulerServer(service, address)
    await server.start()
    try:
        yield service
    finally:
        await kill(server)
        if isinstance(worker, GatedWorker):
            worker.allow(10_000)
        await service.stop()


async def kill(server: SchedulerServer) -> None:
    """Breaks all streams without a status and leaves the socket file, as a killed process does."""
    await server._server.stop(None)


async def until_ready(client: SchedulerClient, *, is_ready: bool = True) -> None:
    async def is_so() -> bool:
        info = client.model_info()
        return info is not None and info.ready == is_ready

    await until(is_so, f"a client with ready = {is_ready}")


async def until_submitted(client: SchedulerClient, num_sequences: int) -> None:
    async def all_there() -> bool:
        stats = await client.stats()
        return stats.num_running + stats.num_waiting == num_sequences

    await until(all_there, f"{num_sequences} sequences")


def request(prompt: Sequence[int] = PROMPT, **changes: object) -> GenerateRequest:
    sampling = SamplingParams(**{"seed": 9, "max_tokens": 40, "ignore_eos": True, **changes})  # type: ignore[arg-type]
    return GenerateRequest(
        handle=0, request_id="r", token_ids=array("i", prompt).tobytes(), sampling=sampling
    )


def expected_tokens(asked: GenerateRequest, index: int = 0) -> list[int]:
    """All tokens of one sequence of a request."""
    assert asked.sampling.seed is not None
    prompt, seed = array("i", asked.token_ids).tolist(), sequence_seed(asked.sampling.seed, index)
    return generate(prompt, asked.sampling, worker_info(), seed)


async def read(stream: TokenStream, num_tokens: int | None = None) -> list[int]:
    """The next `num_tokens` tokens of sequence 0, or all to its end."""
    tokens: list[int] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while num_tokens is None or len(tokens) < num_tokens:
            try:
                tokens += (await anext(stream)).token_ids
            except StopAsyncIteration:
                break
    return tokens


async def read_each(
    stream: TokenStream, got: dict[int, list[int]], until: Callable[[], bool] = lambda: False
) -> None:
    """Adds the tokens of each sequence to its list, up to a condition or the request's end."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not until():
            try:
                update = await anext(stream)
            except StopAsyncIteration:
                return
            got.setdefault(update.index, []).extend(update.token_ids)
