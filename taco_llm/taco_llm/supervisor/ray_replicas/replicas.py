"""Replicas on a Ray cluster: supervised workers and draft workers, each in a Ray actor."""

import asyncio
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError

from taco_common.logging import JSON, LogConfig
from taco_llm.args.engine_args import EngineArgs
from taco_llm.args.flags import DRAFTER, WORKER
from taco_llm.args.tls_args import tls_flags
from taco_llm.supervisor.ray_replicas.actor import ServiceActor
from taco_llm.supervisor.ray_replicas.cluster import RayCluster
from taco_llm.supervisor.ray_replicas.command_lines import draft_worker_command, worker_command
from taco_llm.supervisor.supervised_service import LOGGER, SupervisedService
from taco_proto.config import TlsConfig
from taco_proto.errors import ConfigurationError

# The supervisor warns if a service still waits for a node: the cluster may be too small.
PLACEMENT_SECONDS = 10.0

_ACTOR = ray.remote(ServiceActor)


def ray_replicas(
    engine: EngineArgs,
    scheduler: str,
    count: int,
    cluster: RayCluster,
    tls: TlsConfig | None = None,
    log: LogConfig | None = None,
) -> list[SupervisedService]:
    """Makes `count` workers that connect to `scheduler`, and a draft worker for each if needed.

    The paths in `tls` refer to files on the node of each worker.

    Raises:
        ConfigurationError: a model cannot be found, or the device cannot be requested from Ray.
    """
    engine = engine.with_updates(device=_device(engine, cluster))
    on_cpus = {"num_cpus": engine.num_threads or 1}
    on_gpu = {**on_cpus, "num_gpus": 1}
    resources = on_cpus if engine.device == "cpu" else on_gpu
    replicas: list[SupervisedService] = []
    for index in range(count):
        name = f"worker-{index}"
        # Each worker needs its own license seat. Several may run on one node, which knows its id.
        own = engine.with_updates(license_index=index) if count > 1 else engine
        argv = worker_command(own, scheduler, name)
        replicas.append(RayService(WORKER, name, argv + tls_flags(tls), resources, log))
    for index in range(count):
        name = f"drafter-{index}"
        if (command := draft_worker_command(engine, scheduler, name)) is not None:
            replicas.append(RayService(DRAFTER, name, command + tls_flags(tls), on_cpus, log))
    return replicas


def _device(engine: EngineArgs, cluster: RayCluster) -> str:
    """The device of the workers, "cpu" or "cuda".

    Raises:
        ConfigurationError: the arguments do not say which resources Ray must find.
    """
    device = engine.device
    if device == "auto":
        device = "cuda" if cluster.num_gpus else "cpu"
    if device.startswith("cuda:"):
        raise ConfigurationError(f"device {device}: Ray chooses the GPU of a worker; give cuda")
    if device == "cpu" and engine.num_threads is None:
        raise ConfigurationError(
            "workers on the CPUs of a Ray cluster need num_threads, the number of CPUs that Ray "
            "reserves for each worker"
        )
    return device


class RayService(SupervisedService):
    """A service in a Ray actor. Each start makes a new actor, on any node with free resources.

    Args:
        argv: the command line of the service, without `taco_llm`.
        resources: the resources to request from Ray, as options of an actor.
    """

    def __init__(
        self,
        service: str,
        name: str,
        argv: list[str],
        resources: Mapping[str, int],
        log: LogConfig | None = None,
    ) -> None:
        super().__init__(service, name, log)
        self._argv = [*argv, f"--log-format={JSON}", f"--log-level={self._log.level}"]
        self._resources = resources
        self._actor: Any = None
        self._is_placed = False
        self._run: asyncio.Task[None] | None = None
        self._reason = ""

    async def start(self) -> None:
        options = {**self._resources, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        self._actor = _ACTOR.options(**options).remote()
        self._run = asyncio.create_task(self._run_actor(self._actor))

    async def wait(self) -> None:
        if self._run is not None:
            await asyncio.shield(self._run)

    def exit_reason(self) -> str:
        return self._reason

    def terminate(self) -> None:
        if self._actor is not None and self._is_placed:
            self._actor.terminate.remote()
        else:
            self.kill()

    def kill(self) -> None:
        """Kills the actor, also if it still waits for a node."""
        if self._actor is not None:
            ray.kill(self._actor)

    async def _run_actor(self, actor: Any) -> None:
        """Waits for the actor's placement, forwards its log, and waits for its end."""
        waiting = asyncio.get_running_loop().call_later(PLACEMENT_SECONDS, self._warn_unplaced)
        try:
            host = await actor.start.remote(self._argv)
            waiting.cancel()
            self._is_placed = True
            self._mark_running()
            LOGGER.info("%s runs on %s", self.name, host)
            await self._forward(lambda: actor.read.remote())
            self._reason = self._describe_exit(await actor.wait.remote())
        except RayError as error:
            self._reason = _short_reason(error)
        finally:
            waiting.cancel()
            ray.kill(actor)  # frees the resources of the actor
            self._actor, self._is_placed = None, False

    def _warn_unplaced(self) -> None:
        asked = ", ".join(f"{name} {count}" for name, count in self._resources.items())
        LOGGER.warning("%s waits for a node of the cluster with free %s", self.name, asked)


def _short_reason(error: RayError) -> str:
    """The reason in Ray's error message, without its advice."""
    if isinstance(error, ActorUnavailableError):
        return "its node cannot be reached"
    *_, last = str(error).strip().splitlines() or [type(error).__name__]
    return last.partition(" Some common causes")[0].removeprefix("The actor is dead because ")
