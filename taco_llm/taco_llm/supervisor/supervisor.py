"""The supervisor of `taco_llm serve`: starts, watches, restarts and stops the services.

Gateway, scheduler and workers are child processes that start in parallel and connect over Unix
sockets in a private directory; workers may also run on a Ray cluster. If a child dies before the
service is ready, the command ends with that child's error. Later the supervisor restarts a child
that dies, with exponential back-off. A signal stops the children in order: the gateway first, so
that its requests finish, then the scheduler, then the workers, so that cached KV can be written to
disk.
"""

import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

from taco_common.logging import READY, LogConfig, event, logs_json
from taco_llm.args.engine_args import EngineArgs
from taco_llm.args.flags import GATEWAY, SCHEDULER, WORKER
from taco_llm.args.gateway_args import GatewayArgs
from taco_llm.args.replica_args import DEFAULT_PORT, ReplicaArgs
from taco_llm.args.tls_args import PlaintextArgs
from taco_llm.supervisor.child_process import ChildProcess
from taco_llm.supervisor.local_replicas import local_replicas
from taco_llm.supervisor.preflight import check_before_start
from taco_llm.supervisor.readiness import check_address_free, url, wait_until_ready
from taco_llm.supervisor.run_directory import run_directory
from taco_llm.supervisor.start_line import start_line
from taco_llm.supervisor.supervised_service import LOGGER, SupervisedService
from taco_proto.config import DRAIN_SECONDS, GatewayConfig, RedisConfig, TlsConfig
from taco_proto.errors import ConfigurationError
from taco_worker.models.config import ModelConfig

# A child that has not ended after this time is killed. Gateway and scheduler get their drain time
# in addition.
STOP_SECONDS = 10.0


def serve(
    engine: EngineArgs,
    gateway: GatewayArgs,
    replicas: ReplicaArgs,
    redis: RedisConfig | None = None,
    tls: TlsConfig | None = None,
    log: LogConfig | None = None,
    plaintext: PlaintextArgs = PlaintextArgs(),  # noqa: B008 (it is frozen)
) -> int:
    """Serves a model until SIGINT or SIGTERM; returns the exit code of the command.

    Args:
        tls: TLS files for links to the scheduler on a network, and to the license server. The
            certificate must prove the roles of all services.
        log: format and level of this process's log, which includes the log of the services.
        plaintext: whether the scheduler may listen on a network without TLS.

    Raises:
        ConfigurationError: the model, an address or the cluster cannot be used, or a child did not
            start.
    """
    model = engine.model_config()
    checked = check_before_start(engine, replicas)
    with ExitStack() as stack:
        directory = stack.enter_context(run_directory())
        address = replicas.scheduler_listen or f"unix:{directory / 'scheduler.sock'}"
        if replicas.scheduler_listen is not None:
            plaintext.check(replicas.scheduler_listen, tls)
        workers: Sequence[SupervisedService]
        if replicas.on_ray:
            from taco_llm.supervisor.ray_replicas.cluster import ray_cluster
            from taco_llm.supervisor.ray_replicas.replicas import ray_replicas

            cluster = stack.enter_context(ray_cluster(directory))
            if replicas.scheduler_listen is None:
                address = cluster.address(DEFAULT_PORT)
                plaintext.check(address, tls)
            workers = ray_replicas(engine, address, replicas.data_parallel_size, cluster, tls, log)
        else:
            workers = local_replicas(engine, address, replicas.data_parallel_size, tls, log)
        admin = f"unix:{directory / 'admin.sock'}"
        gateway_config = gateway.gateway_config(model, address, admin_listen=admin, redis=redis)
        scheduler_config = engine.scheduler_config(address, redis)
        if replicas.on_network:
            gateway_config = replace(gateway_config, tls=tls)
            scheduler_config = replace(scheduler_config, tls=tls)
        check_address_free(gateway_config)
        children: list[SupervisedService] = [
            ChildProcess(GATEWAY, gateway_config, log=log),
            ChildProcess(SCHEDULER, scheduler_config, log=log),
            *workers,
        ]
        return asyncio.run(Supervisor(children, gateway_config, checked).run())


class Supervisor:
    """Starts services and restarts those that die. Stops them by kind, in the order of `children`.

    Args:
        model: the model, for the start line.
    """

    def __init__(
        self, children: Sequence[SupervisedService], gateway: GatewayConfig, model: ModelConfig
    ) -> None:
        self._children = children
        self._model = model
        self._gateway = gateway
        self._stopping = asyncio.Event()
        self._is_serving = False

    async def run(self) -> int:
        """Runs the services until a signal stops them; returns 0.

        Raises:
            ConfigurationError: a child died before the service was ready.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        reloads = self._gateway.api_key_file is not None
        loop.add_signal_handler(signal.SIGHUP, self._reload if reloads else self._on_signal)
        started_at = time.monotonic()
        try:
            await asyncio.gather(*(child.start() for child in self._children))
            if await self._wait_until_ready():
                for child in self._children:
                    child.mark_started()
                self._print_start_line(time.monotonic() - started_at)
                self._is_serving = True
                await self._keep_running()
        finally:
            await self._stop()
        return 0

    def _print_start_line(self, seconds: float) -> None:
        """Prints the start line, or logs it if the log format is JSON."""
        loaded = [child.loaded for child in self._children if child.service == WORKER]
        line = start_line(self._model, loaded, url(self._gateway), seconds)
        if logs_json():
            names = self._gateway.model.served_model_names
            LOGGER.info("%s", line, extra=event(READY, {"models": names, **asdict(line)}))
            return
        encoding = sys.stdout.encoding or "ascii"
        print(str(line).encode(encoding, "replace").decode(encoding), flush=True)

    def _on_signal(self) -> None:
        if self._stopping.is_set():
            for child in self._children:
                child.kill()
        else:
            LOGGER.info("stopping: running requests have %g s", self._gateway.drain_timeout)
        self._stopping.set()

    def _reload(self) -> None:
        """Makes the gateway reload its API keys. During the start it has just read them."""
        for child in self._children:
            if isinstance(child, ChildProcess) and child.service == GATEWAY and self._is_serving:
                child.reload()

    async def _wait_until_ready(self) -> bool:
        """Waits until the service is ready; returns False if a signal came first.

        Raises:
            ConfigurationError: a child died.
        """
        workers = [child.name for child in self._children if child.service == WORKER]
        # A single worker has another name at the scheduler, so only the model is checked for it.
        named = workers if len(workers) > 1 else []
        ready = asyncio.create_task(wait_until_ready(self._gateway, named))
        stopped = asyncio.create_task(self._stopping.wait())
        deaths = {asyncio.create_task(child.wait()): child for child in self._children}
        tasks: set[asyncio.Task[Any]] = {ready, stopped, *deaths}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        if stopped in done:
            return False
        for death, child in deaths.items():
            if death in done:
                raise ConfigurationError(f"{child.title} did not start: {child.exit_reason()}")
        return True

    async def _keep_running(self) -> None:
        """Restarts children that die, until a signal stops the supervisor."""
        restarters = [asyncio.create_task(child.keep_running()) for child in self._children]
        stopped = asyncio.create_task(self._stopping.wait())
        tasks: list[asyncio.Task[Any]] = [stopped, *restarters]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()  # a restarter ends only with an error, which ends the supervisor

    async def _stop(self) -> None:
        for child in self._children:
            child.is_stopping = True
        drains = {GATEWAY: self._gateway.drain_timeout, SCHEDULER: DRAIN_SECONDS}
        for service in dict.fromkeys(child.service for child in self._children):
            seconds = STOP_SECONDS + drains.get(service, 0.0)
            stops = [child.stop(seconds) for child in self._children if child.service == service]
            await asyncio.gather(*stops)
