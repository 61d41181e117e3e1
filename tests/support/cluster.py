"""Two gateways, a scheduler and two workers as processes, for tests that kill, stop and cut them.

The second worker and the second gateway reach the scheduler over links that may be cut.
"""

import os
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import httpx

from support.fragile_worker import STEP_SECONDS
from support.link import Link
from support.patience import PATIENCE_SECONDS, until
from support.serving import free_port
from support.streams import Body, Streams, ask
from support.watched_cluster import WatchedCluster
from taco_demo.locate import find_model
from taco_llm.args.flags import DRAFTER, GATEWAY, SCHEDULER, WORKER
from taco_llm.supervisor.child_message import ServiceConfig, encode_config
from taco_proto import scheduler_pb2 as pb
from taco_proto.config import (
    DrafterConfig,
    GatewayConfig,
    ModelConfig,
    SchedulerConfig,
    SpeculationConfig,
    WorkerConfig,
)
from taco_proto.scheduler_pb2_grpc import SchedulerStub

NUM_BLOCKS = 1024  # of each worker
TESTS = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Pace:
    """Time constants of the product, in seconds, and of the tests.

    Attributes:
        step_seconds: how long a worker's step takes at least.
        num_tokens: length of the answers during which something breaks.
        num_rolled_requests: how many come, at least, while workers are replaced.
    """

    worker_timeout: float
    stall_timeout: float
    step_seconds: float
    num_tokens: int
    num_rolled_requests: int


REAL = Pace(
    worker_timeout=10.0,
    stall_timeout=30.0,
    step_seconds=0.0,
    num_tokens=400,
    num_rolled_requests=1000,
)
SCALED = Pace(
    worker_timeout=4.0,
    stall_timeout=1.0,
    step_seconds=0.015,
    num_tokens=64,
    num_rolled_requests=0,
)


class Process:
    """One service, with its log in a file that outlives its lives.

    Args:
        step_seconds: how long a step takes at least, if it is a worker.
        place: first words of a command that runs it elsewhere, as on a host of a `Network`.
    """

    def __init__(
        self,
        service: str,
        config: ServiceConfig,
        log: Path,
        step_seconds: float = 0.0,
        place: Sequence[str] = (),
    ) -> None:
        self.service = service
        self.config = config
        self._log = log
        self._place = place
        self._clock_offset = log.with_suffix(".clock")
        self._clock_offset.write_bytes(struct.pack("<d", 0.0))
        self._environment = {
            "PYTHONPATH": f"{TESTS}:{TESTS / 'support' / 'wall_clock'}",
            "WALL_CLOCK_OFFSET": str(self._clock_offset),
            STEP_SECONDS: str(step_seconds),
        }
        self._popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Call it from the main thread: the service dies with the thread that started it."""
        # A worker that a marked prompt can kill.
        module = "support.fragile_worker" if self.service == WORKER else "taco_llm.cli.child"
        with self._log.open("ab") as err:
            self._popen = subprocess.Popen(
                [*self._place, sys.executable, "-m", module, self.service],
                stdin=subprocess.PIPE,
                stdout=err,
                stderr=err,
                env=os.environ | self._environment,
                start_new_session=True,
            )
        assert self._popen.stdin is not None
        with self._popen.stdin as stdin:
            stdin.write(encode_config(self.config, os.getpid()))

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def pid(self) -> int:
        assert self._popen is not None
        return self._popen.pid

    @property
    def runs(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    def kill(self) -> None:
        """kill -9."""
        if self._popen is not None:
            self._popen.kill()
            self._popen.wait()

    def set_wall_clock(self, offset: float) -> None:
        """From now on the process's wall clock is `offset` seconds ahead of the machine's."""
        with self._clock_offset.open("r+b") as file:  # in place: the process has mapped it
            file.write(struct.pack("<d", offset))

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    async def ended(self) -> int:
        """Its exit code, once there is one."""

        async def has_ended() -> bool:
            return not self.runs

        await until(has_ended, f"the end of the {self.service}")
        assert self._popen is not None
        return int(self._popen.returncode)

    def _signal(self, number: signal.Signals) -> None:
        assert self._popen is not None
        self._popen.send_signal(number)


class Cluster(WatchedCluster):
    """The processes, and what the scheduler says of them.

    Attributes:
        processes: by name: scheduler, gateway-0, gateway-1, a, b, and what was added.
        worker_link, gateway_link: of worker b and of gateway-1.
    """

    def __init__(self, directory: Path, pace: Pace) -> None:
        super().__init__()
        self.pace = pace
        self._directory = directory
        model = find_model("demo")
        assert model is not None
        self._model = ModelConfig(model=str(model), served_model_names=("demo",))
        port = free_port()
        self._address = f"127.0.0.1:{port}"
        self.worker_link, self.gateway_link = Link(port), Link(port)
        self.processes: dict[str, Process] = {}
        self._is_warm = False
        self._ports = (free_port(), free_port())
        self.add_scheduler("scheduler", self._address)
        self.restore_workers()
        self._add_gateway(0, self._address)
        self._add_gateway(1, f"127.0.0.1:{self.gateway_link.port}")

    # ----------------------------------------------------------- processes

    def __getitem__(self, name: str) -> Process:
        return self.processes[name]

    def url(self, gateway: int = 0) -> str:
        return f"http://127.0.0.1:{self._ports[gateway]}"

    def port(self, gateway: int = 0) -> int:
        return self._ports[gateway]

    def connect(self, bodies: Iterable[Body], gateway: int = 0) -> Streams:
        return Streams(self.url(gateway), bodies)

    def disk_path(self, worker: str) -> Path:
        return self._directory / f"kv-{worker}"

    def add_scheduler(self, name: str, address: str) -> Process:
        config = SchedulerConfig(
            listen=address, log_stats=False, worker_timeout=self.pace.worker_timeout
        )
        return self._add(name, SCHEDULER, config)

    @contextmanager
    def next_scheduler(self) -> Iterator[Process]:
        """Another scheduler, to which new connections over the links go. After it the first one
        has to be started again.
        """
        port = free_port()
        process = self.add_scheduler("next-scheduler", f"127.0.0.1:{port}")
        self._redirect(port)
        try:
            yield process
        finally:
            self._redirect(int(self._address.rpartition(":")[2]))
            self.remove("next-scheduler")

    def _redirect(self, port: int) -> None:
        for link in (self.worker_link, self.gateway_link):
            link.redirect(port)

    def add_worker(self, name: str, address: str = "", place: Sequence[str] = ()) -> Process:
        """`place`: see `Process`."""
        config = WorkerConfig(
            model=self._model,
            scheduler=address or self._address,
            name=name,
            num_blocks=NUM_BLOCKS,
            num_threads=1,
            speculation=SpeculationConfig(num_speculative_tokens=4),
            host_kv_bytes=32 * 2**20,
            kv_disk_path=str(self.disk_path(name)),
            kv_disk_bytes=32 * 2**20,
        )
        return self._add(name, WORKER, config, place)

    def restore_workers(self) -> None:
        """Those that the cluster begins with, and no others."""
        for name in [name for name, p in self.processes.items() if p.service == WORKER]:
            if name not in ("a", "b"):
                self.remove(name)
        if "a" not in self.processes:
            self.add_worker("a")
        if "b" not in self.processes:
            self.add_worker("b", f"127.0.0.1:{self.worker_link.port}")

    def add_drafter(self, name: str = "drafter") -> Process:
        model = find_model("demo-draft")
        assert model is not None
        config = DrafterConfig(
            model=ModelConfig(model=str(model)), scheduler=self._address, name=name, num_threads=1
        )
        return self._add(name, DRAFTER, config)

    def remove(self, name: str) -> None:
        self.processes.pop(name).kill()

    async def heal(self) -> None:
        """Everything runs, is connected, and is idle."""
        self.worker_link.heal()
        self.gateway_link.heal()
        for process in self.processes.values():
            process.set_wall_clock(0.0)
            if process.runs:
                process.resume()
            else:
                process.start()
                self._is_warm = False
        for gateway in range(len(self._ports)):
            await until(lambda gateway=gateway: self._is_ready(gateway), f"gateway {gateway}")  # type: ignore[misc]
        await self.until_workers(sum(p.service == WORKER for p in self.processes.values()))
        if not self._is_warm:  # a new worker's first step is slow: streams would not run evenly
            await ask(self.url(), [{"prompt": [n], "max_tokens": 2} for n in range(9, 25)])
            self._is_warm = True
        await self.until_idle()

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
        self.worker_link.close()
        self.gateway_link.close()

    def _add(
        self, name: str, service: str, config: ServiceConfig, place: Sequence[str] = ()
    ) -> Process:
        log = self._directory / f"{name}.log"
        process = Process(service, config, log, self.pace.step_seconds, place)
        self.processes[name] = process
        self._is_warm = False
        process.start()
        return process

    def _add_gateway(self, number: int, scheduler: str) -> None:
        config = GatewayConfig(
            model=self._model,
            scheduler=scheduler,
            host="127.0.0.1",
            port=self._ports[number],
            stall_timeout=self.pace.stall_timeout,
            log_requests=False,
        )
        self._add(f"gateway-{number}", GATEWAY, config)

    async def _is_ready(self, gateway: int) -> bool:
        async with httpx.AsyncClient() as client:
            try:
                return (await client.get(f"{self.url(gateway)}/health")).status_code == 200
            except httpx.HTTPError:
                return False

    # --------------------------------------------------------------- state

    async def stats(self) -> pb.StatsReply:
        """Raises grpc.aio.AioRpcError: no scheduler is there."""
        async with grpc.aio.insecure_channel(self._address) as channel:
            return await SchedulerStub(channel).Stats(pb.StatsRequest(), timeout=PATIENCE_SECONDS)

    async def num_workers(self) -> int:
        try:
            return int((await self.stats()).num_workers)
        except grpc.aio.AioRpcError:
            return 0

    async def running(self, worker: str) -> int:
        text = (await self.stats()).prometheus.decode()
        return int(sum_of("taco:worker_running", text, f'worker="{worker}"'))

    async def figure(self, name: str) -> float:
        """The sum of a scheduler's metric over its labels; 0 if the metric is missing."""
        return sum_of(name, (await self.stats()).prometheus.decode())

    async def gateway_figure(self, name: str, gateway: int = 0) -> float:
        async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as client:
            return sum_of(name, (await client.get(f"{self.url(gateway)}/metrics")).text)

    async def until_idle(self) -> None:
        """No request is there, and every block is free or can be evicted."""
        await until(self._is_idle, "free blocks")

    async def _is_idle(self) -> bool:
        stats = await self.stats()
        return not (stats.num_running or stats.num_waiting or stats.kv_cache_usage) and (
            stats.num_free_blocks == stats.num_blocks
        )


def sum_of(name: str, text: str, label: str = "") -> float:
    """The sum of a metric over its labels in Prometheus's text; 0 if it is missing.

    Args:
        label: what the labels of those that count have in them.
    """
    found = re.findall(rf"^{re.escape(name)}(?:{{(.*)}})? (\S+)$", text, re.MULTILINE)
    return sum(float(value) for labels, value in found if label in labels)


@contextmanager
def running_cluster(directory: Path, pace: Pace) -> Iterator[Cluster]:
    cluster = Cluster(directory, pace)
    try:
        yield cluster
    finally:
        cluster.close()
