"""A scheduler, a gateway and a worker on one host of a `Network`, another worker on the other one.

Clients reach the gateway over a Unix socket, which no network namespace is in the way of.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from support.cluster import NUM_BLOCKS, REAL, Process, sum_of
from support.network import NEAR, Network
from support.patience import PATIENCE_SECONDS
from support.streams import Body, Streams
from support.watched_cluster import WatchedCluster
from taco_demo.locate import find_model
from taco_llm.args.flags import GATEWAY, SCHEDULER, WORKER
from taco_proto.config import GatewayConfig, ModelConfig, SchedulerConfig, WorkerConfig

ADDRESS = f"{NEAR}:7100"


class NetworkCluster(WatchedCluster):
    """The processes, at the product's own time constants, and what /metrics says of them."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        model_path = find_model("demo")
        assert model_path is not None
        model = ModelConfig(model=str(model_path), served_model_names=("demo",))
        self._uds = str(directory / "http.sock")
        self.network = Network()
        scheduler = SchedulerConfig(
            listen=ADDRESS, log_stats=False, worker_timeout=REAL.worker_timeout
        )
        gateway = GatewayConfig(model=model, scheduler=ADDRESS, uds=self._uds, log_requests=False)
        a, b = (
            WorkerConfig(
                model=model, scheduler=ADDRESS, name=name, num_blocks=NUM_BLOCKS, num_threads=1
            )
            for name in ("a", "b")
        )
        self._processes = [
            Process(SCHEDULER, scheduler, directory / "scheduler.log", place=self.network.near),
            Process(GATEWAY, gateway, directory / "gateway.log", place=self.network.near),
            Process(WORKER, a, directory / "a.log", place=self.network.near),
            Process(WORKER, b, directory / "b.log", place=self.network.far),
        ]
        for process in self._processes:
            process.start()

    def connect(self, bodies: Iterable[Body], gateway: int = 0) -> Streams:
        assert gateway == 0
        return Streams("http://near", bodies, self._uds)

    async def figure(self, name: str, label: str = "") -> float:
        """The sum of a metric over its labels; 0 if there is no gateway yet."""
        transport = httpx.AsyncHTTPTransport(uds=self._uds)
        async with httpx.AsyncClient(transport=transport, timeout=PATIENCE_SECONDS) as client:
            try:
                text = (await client.get("http://near/metrics")).text
            except httpx.ConnectError:
                return 0.0
            return sum_of(name, text, label)

    async def running(self, worker: str) -> int:
        return int(await self.figure("taco:worker_running", f'worker="{worker}"'))

    async def num_workers(self) -> int:
        return int(await self.figure("taco:workers"))

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        self.network.close()


@contextmanager
def running_network_cluster(directory: Path) -> Iterator[NetworkCluster]:
    cluster = NetworkCluster(directory)
    try:
        yield cluster
    finally:
        cluster.close()
