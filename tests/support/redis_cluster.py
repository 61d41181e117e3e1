"""Two schedulers with a worker each behind two gateways, which find them through a Redis.

All services reach Redis over a link that may be slow or cut.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import grpc.aio
import httpx

from support.cluster import NUM_BLOCKS, Pace, Process
from support.link import Link
from support.patience import PATIENCE_SECONDS, until
from support.redis_server import RedisServer
from support.serving import free_port
from support.streams import Answer, Body, Streams, ask
from taco_demo.locate import find_model
from taco_llm.args.flags import GATEWAY, SCHEDULER, WORKER
from taco_proto import scheduler_pb2 as pb
from taco_proto.config import (
    GatewayConfig,
    ModelConfig,
    RedisConfig,
    SchedulerConfig,
    WorkerConfig,
)
from taco_proto.registry import record_key
from taco_proto.scheduler_pb2_grpc import SchedulerStub

NUMBERS = (0, 1)


class RedisCluster:
    """The processes.

    Attributes:
        redis: to be killed, flushed and started again.
        redis_link: between it and everybody else.
        processes: by name: scheduler-N, worker-N, gateway-N.
        answers: of all `streams`.
    """

    def __init__(self, directory: Path, pace: Pace) -> None:
        self.redis = RedisServer(directory).start()
        self.redis_link = Link(self.redis.port)
        self.processes: dict[str, Process] = {}
        self.answers: list[Answer] = []
        self._is_warm = False
        self._ports = [free_port() for _ in NUMBERS]
        self._addresses = [f"127.0.0.1:{free_port()}" for _ in NUMBERS]
        model_path = find_model("demo")
        assert model_path is not None
        model = ModelConfig(model=str(model_path), served_model_names=("demo",))
        redis = RedisConfig(url=f"redis://127.0.0.1:{self.redis_link.port}")
        for number, (port, address) in enumerate(zip(self._ports, self._addresses, strict=True)):
            scheduler = SchedulerConfig(
                listen=address,
                log_stats=False,
                worker_timeout=pace.worker_timeout,
                redis=redis,
                advertise=address,
            )
            worker = WorkerConfig(
                model=model,
                scheduler=address,
                name=f"worker-{number}",
                num_blocks=NUM_BLOCKS,
                num_threads=1,
            )
            gateway = GatewayConfig(
                model=model,
                scheduler="",
                host="127.0.0.1",
                port=port,
                log_requests=False,
                redis=redis,
            )
            self.processes[f"scheduler-{number}"] = Process(
                SCHEDULER, scheduler, directory / f"scheduler-{number}.log"
            )
            self.processes[f"worker-{number}"] = Process(
                WORKER, worker, directory / f"worker-{number}.log", pace.step_seconds
            )
            self.processes[f"gateway-{number}"] = Process(
                GATEWAY, gateway, directory / f"gateway-{number}.log"
            )

    def __getitem__(self, name: str) -> Process:
        return self.processes[name]

    def url(self, gateway: int = 0) -> str:
        return f"http://127.0.0.1:{self._ports[gateway]}"

    def streams(self, bodies: Iterable[Body], gateway: int = 0) -> Streams:
        streams = Streams(self.url(gateway), bodies)
        self.answers += streams.answers
        return streams

    async def heal(self) -> None:
        """Everything runs, is connected, and is idle."""
        self.redis_link.heal()
        for process in self.processes.values():
            if not process.runs:
                process.start()
                self._is_warm = False
        await self.until_gateways_trust_redis()
        for number in NUMBERS:
            await self.until_registered(number)
            await self.until_workers(number, len(NUMBERS))
        if not self._is_warm:  # a new worker's first step is slow: streams would not run evenly
            for gateway in NUMBERS:
                warm_up = [{"prompt": [n], "max_tokens": 2} for n in range(9, 17)]
                await ask(self.url(gateway), warm_up)
            self._is_warm = True
        for number in NUMBERS:
            await self.until_idle(number)

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
        self.redis_link.close()
        self.redis.kill()

    # --------------------------------------------------------------- state

    async def stats(self, scheduler: int) -> pb.StatsReply:
        """Raises grpc.aio.AioRpcError: no scheduler is there."""
        async with grpc.aio.insecure_channel(self._addresses[scheduler]) as channel:
            return await SchedulerStub(channel).Stats(pb.StatsRequest(), timeout=PATIENCE_SECONDS)

    async def until_gateways_trust_redis(self, *, trusted: bool = True) -> None:
        async def is_so() -> bool:
            logs = [self[f"gateway-{number}"].log for number in NUMBERS]
            return all(_ends_with_trust(log) == trusted for log in logs)

        await until(is_so, f"gateways that trust Redis: {trusted}")

    async def until_registered(self, scheduler: int) -> None:
        async def is_so() -> bool:
            return bool(self.redis.run("EXISTS", record_key(self._addresses[scheduler])))

        await until(is_so, f"a record of scheduler {scheduler}")

    async def until_workers(self, gateway: int, count: int) -> None:
        """Waits until a gateway has streams to schedulers with `count` workers in total."""

        async def is_so() -> bool:
            async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as client:
                try:
                    page = (await client.get(f"{self.url(gateway)}/metrics")).text
                except httpx.HTTPError:
                    return False
            return page.count("\ntaco:worker_load{") == count

        await until(is_so, f"{count} workers at gateway {gateway}")

    async def until_idle(self, scheduler: int) -> None:
        async def is_so() -> bool:
            stats = await self.stats(scheduler)
            return not (stats.num_running or stats.num_waiting or stats.kv_cache_usage)

        await until(is_so, f"nothing to do for scheduler {scheduler}")


def _ends_with_trust(log: str) -> bool:
    ends = ("is not trusted now", "waiting for Redis")
    return log.rfind("is trusted") > max(log.rfind(text) for text in ends)


@contextmanager
def running_redis_cluster(directory: Path, pace: Pace) -> Iterator[RedisCluster]:
    cluster = RedisCluster(directory, pace)
    try:
        yield cluster
    finally:
        cluster.close()
