"""Workers on a Ray cluster, as the supervisor sees them."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
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

# A service that has no place by then is told of: the cluster may have none that is large enough.
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
    """`count` workers that dial `scheduler`, and a draft worker for each where one is asked for.

    The files of `tls` are those of the node that a worker is on.

    Raises:
        ConfigurationError: a model cannot be found, or the device cannot be asked of Ray.
    """
    engine = replace(engine, device=_device(engine, cluster))
    on_cpus = {"num_cpus": engine.num_threads or 1}
    on_gpu = {**on_cpus, "num_gpus": 1}
    resources = on_cpus if engine.device == "cpu" else on_gpu
    replicas: list[SupervisedService] = []
    for index in range(count):
        name = f"worker-{index}"
        # A seat is one worker's, and several may be on one node, whose id is found there.
        own = replace(engine, license_index=index) if count > 1 else engine
        argv = worker_command(own, scheduler, name)
        replicas.append(RayService(WORKER, name, argv + tls_flags(tls), resources, log))
    for index in range(count):
        name = f"drafter-{index}"
        if (command := draft_worker_command(engine, scheduler, name)) is not None:
            replicas.append(RayService(DRAFTER, name, command + tls_flags(tls), on_cpus, log))
    return replicas


def _device(engine: EngineArgs, cluster: RayCluster) -> str:
    """Raises ConfigurationError: Ray is not told what to look for."""
    device = engine.device
    if device == "auto":
        device = "cuda" if cluster.num_gpus else "cpu"
    if device.startswith("cuda:"):
        raise ConfigurationError(f"device {device}: Ray chooses the GPU of a worker; give cuda")
    if device == "cpu" and engine.num_threads is None:
        raise ConfigurationError(
            "workers on a Ray cluster's CPUs need num_threads: Ray is asked for so many CPUs for "
            "each of them"
        )
    return device


class RayService(SupervisedService):
    """A service in an actor of its own, which is made anew at each start, wherever there is room.

    Args:
        argv: the command line of the service, behind `taco_llm`.
        resources: what Ray is asked for, as options of an actor.
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
        self._has_place = False
        self._life: asyncio.Task[None] | None = None
        self._reason = ""

    async def start(self) -> None:
        options = {**self._resources, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        self._actor = _ACTOR.options(**options).remote()
        self._life = asyncio.create_task(self._live(self._actor))

    async def wait(self) -> None:
        if self._life is not None:
            await asyncio.shield(self._life)

    def last_words(self) -> str:
        return self._reason

    def terminate(self) -> None:
        if self._actor is not None and self._has_place:
            self._actor.terminate.remote()
        else:
            self.kill()

    def kill(self) -> None:
        """Also where the actor still waits for a place."""
        if self._actor is not None:
            ray.kill(self._actor)

    async def _live(self, actor: Any) -> None:
        """From the actor's placement to its end."""
        waiting = asyncio.get_running_loop().call_later(PLACEMENT_SECONDS, self._tell_of_waiting)
        try:
            host = await actor.start.remote(self._argv)
            waiting.cancel()
            self._has_place = True
            self._note_begin()
            LOGGER.info("%s runs on %s", self.name, host)
            await self._forward(lambda: actor.read.remote())
            self._reason = self._exit_reason(await actor.wait.remote())
        except RayError as error:
            self._reason = _why(error)
        finally:
            waiting.cancel()
            ray.kill(actor)  # its process is of no use any more, and what it holds is free
            self._actor, self._has_place = None, False

    def _tell_of_waiting(self) -> None:
        asked = ", ".join(f"{name} {count}" for name, count in self._resources.items())
        LOGGER.warning("%s waits for a node of the cluster with room for %s", self.name, asked)


def _why(error: RayError) -> str:
    """What has happened, out of Ray's account, which ends with advice."""
    if isinstance(error, ActorUnavailableError):
        return "its node cannot be reached"
    *_, last = str(error).strip().splitlines() or [type(error).__name__]
    return last.partition(" Some common causes")[0].removeprefix("The actor is dead because ")
