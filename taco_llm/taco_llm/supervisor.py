"""`taco_llm serve`: gateway, scheduler and workers as children of one supervisor.

They start side by side and meet over Unix sockets in a private directory. Until the service
has been ready once, a child that dies ends the command, with the child's own words; later a child
that dies is started again. A signal stops them in order: the gateway first, so that its requests
finish, and the scheduler before the worker, so that what is cached can go to disk.
"""

import asyncio
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from taco_llm.child_process import ChildProcess
from taco_llm.engine_args import EngineArgs
from taco_llm.flags import DRAFTER, GATEWAY, SCHEDULER, WORKER
from taco_llm.gateway_args import GatewayArgs
from taco_llm.readiness import check_address_free, url, wait_until_ready
from taco_proto.config import DRAIN_SECONDS, GatewayConfig, RedisConfig
from taco_proto.errors import ConfigurationError

# A child that has not ended by then is killed; gateway and scheduler first get their time to drain.
STOP_SECONDS = 10.0


def serve(engine: EngineArgs, gateway: GatewayArgs, redis: RedisConfig | None = None) -> int:
    """Serves until SIGINT or SIGTERM; returns the exit code of the command.

    Raises:
        ConfigurationError: the model or the address cannot be used, or a child did not start.
    """
    with tempfile.TemporaryDirectory(prefix="taco-") as directory:  # mode 0700
        address = f"unix:{Path(directory) / 'scheduler.sock'}"
        worker_config = engine.worker_config(address)
        gateway_config = gateway.gateway_config(
            worker_config.model,
            address,
            admin_listen=f"unix:{Path(directory) / 'admin.sock'}",
            redis=redis,
        )
        check_address_free(gateway_config)
        children = [
            ChildProcess(GATEWAY, gateway_config),
            ChildProcess(SCHEDULER, engine.scheduler_config(address, redis)),
            ChildProcess(WORKER, worker_config),
        ]
        if (drafter_config := engine.drafter_config(address)) is not None:
            children.append(ChildProcess(DRAFTER, drafter_config))
        return asyncio.run(Supervisor(children, gateway_config).run())


class Supervisor:
    """Starts children, keeps them running, stops them in the order in which they are given."""

    def __init__(self, children: list[ChildProcess], gateway: GatewayConfig) -> None:
        self._children = children
        self._gateway = gateway
        self._stopping = asyncio.Event()
        self._is_up = False

    async def run(self) -> int:
        """Returns 0 after a signal.

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
            if await self._become_ready():
                for child in self._children:
                    child.release()
                seconds = time.monotonic() - started_at
                name, where = self._gateway.model.served_name, url(self._gateway)
                print(f"TACO serves {name} at {where} (ready after {seconds:.1f} s)", flush=True)
                self._is_up = True
                await self._keep_running()
        finally:
            await self._stop()
        return 0

    def _on_signal(self) -> None:
        if self._stopping.is_set():
            for child in self._children:
                child.kill()
        self._stopping.set()

    def _reload(self) -> None:
        """The keys are to be read again. Before the start is done they have just been read."""
        for child in self._children:
            if child.service == GATEWAY and self._is_up:
                child.hang_up()

    async def _become_ready(self) -> bool:
        """Waits until the service answers; False if it was told to stop before.

        Raises:
            ConfigurationError: a child died.
        """
        ready = asyncio.create_task(wait_until_ready(self._gateway))
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
                raise ConfigurationError(f"the {child.service} did not start: {child.last_words()}")
        return True

    async def _keep_running(self) -> None:
        """Restarts children that die until it is told to stop."""
        keepers = [asyncio.create_task(child.keep_running()) for child in self._children]
        await self._stopping.wait()
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)

    async def _stop(self) -> None:
        drains = {GATEWAY: self._gateway.drain_timeout, SCHEDULER: DRAIN_SECONDS}
        for child in self._children:
            await child.stop(STOP_SECONDS + drains.get(child.service, 0.0))
