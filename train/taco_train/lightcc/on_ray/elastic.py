"""`horovod.ray.ElasticRayExecutor`: an elastic job whose hosts are the nodes of a Ray cluster."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from taco_train.cluster import hosts
from taco_train.lightcc.launcher.host_slots import HostSlots, store_variables
from taco_train.lightcc.launcher.options import Options
from taco_train.lightcc.launcher.rank_group import Ended, Event
from taco_train.lightcc.on_ray.settings import ElasticRaySettings, worker_variables
from taco_train.lightcc.on_ray.workers import Resources

logger = logging.getLogger(__name__)
_PERIOD_SECONDS = 1.0
_FAILED = 1


class RayHostDiscovery:
    """The nodes of the Ray cluster as hosts."""

    def __init__(
        self, use_gpu: bool = False, cpus_per_slot: float = 1, gpus_per_slot: int | None = None
    ) -> None:
        self._resources = Resources.of(cpus_per_slot, use_gpu, gpus_per_slot)

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """How many workers have room on each node, by address; nodes without room are left out."""
        from taco_train.lightcc.on_ray import cluster

        found: dict[str, int] = {}
        for node in cluster.nodes():
            slots = self._resources.slots(node.resources)
            if slots:
                found[node.address] = found.get(node.address, 0) + slots
        return found


class ElasticRayExecutor:
    """Calls a function in workers on all nodes of a Ray cluster; nodes may come and go.

        executor = ElasticRayExecutor(ElasticRayExecutor.create_settings(min_num_proc=2))
        executor.start()
        results = executor.run(train)  # train calls hvd.init() and hvd.elastic.run

    Args:
        settings: of `create_settings`.
        use_gpu: whether workers get GPUs. Each sees all GPUs of its node: `hvd.local_rank()` is the
            number of the one to use.
        cpus_per_slot, gpus_per_slot: of a worker.
        env_vars: environment variables of the workers. LightCC's own variables of this process are
            passed on without being named here.
        override_discovery: hosts are the nodes of the cluster; False: those that
            `settings.discovery` finds.

    Raises:
        ValueError: arguments contradict each other.
    """

    @staticmethod
    def create_settings(
        min_num_proc: int = 1,
        max_num_proc: int | None = None,
        reset_limit: int | None = None,
        elastic_timeout: float = 600,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        nics: Collection[str] = (),
        min_np: int | None = None,
        max_np: int | None = None,
        **_: Any,
    ) -> ElasticRaySettings:
        """See `ElasticRaySettings`; `min_np` and `max_np` are old names.

        Raises:
            ValueError: a number cannot be.
        """
        return ElasticRaySettings(
            min_np or min_num_proc,
            max_np or max_num_proc,
            reset_limit,
            elastic_timeout,
            timeout_s,
            nics,
        )

    def __init__(
        self,
        settings: ElasticRaySettings,
        use_gpu: bool = False,
        cpus_per_slot: float = 1,
        gpus_per_slot: int | None = None,
        env_vars: Mapping[str, object] | None = None,
        override_discovery: bool = True,
    ) -> None:
        self._resources = Resources.of(cpus_per_slot, use_gpu, gpus_per_slot)
        if override_discovery:
            settings.discovery = RayHostDiscovery(use_gpu, cpus_per_slot, gpus_per_slot)
        elif not hasattr(settings.discovery, "find_available_hosts_and_slots"):
            raise ValueError(
                "override_discovery is False, but settings.discovery has no "
                "find_available_hosts_and_slots()"
            )
        self.settings = settings
        self.env_vars: Mapping[str, object] = env_vars or {}

    def start(self) -> None:
        """Connects to the cluster; `run` starts the workers.

        Raises:
            VariableError: a variable has a value that it cannot have.
            ValueError: this process is not on a node of the cluster.
        """
        from taco_train.lightcc.on_ray import cluster

        worker_variables(self.settings.nics, self.env_vars, os.environ)
        cluster.connect()
        cluster.own_address()

    def run(self, worker_fn: Callable[[], Any]) -> list[Any]:
        """Calls the function in workers until those of a round have returned.

        Returns:
            What it returned, by rank of the last round.

        Raises:
            TypeError: the function cannot be pickled.
            JobError: too few ranks are left.
        """
        return self.run_with(worker_fn, (), {})

    def run_with(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[Any]:
        """As `run`, with arguments for the function."""
        # torch takes seconds
        from taco_train.collective.store import open_store
        from taco_train.lightcc.launcher.elastic_job import ElasticJob
        from taco_train.lightcc.on_ray import cluster

        settings = self.settings
        variables = worker_variables(settings.nics, self.env_vars, os.environ)
        cluster.connect()
        address = hosts.interface_address({**os.environ, **variables}) or cluster.own_address()
        call = cluster.put(function, args, kwargs)
        store, port = open_store("0.0.0.0", 0, serves=True, timeout=settings.timeout_s)
        group = ActorGroup(call, self._resources)
        options = Options(
            command=(),
            num_ranks=None,
            variables=variables,
            min_ranks=settings.min_num_proc,
            max_ranks=settings.max_num_proc,
            start_timeout=settings.timeout_s,
            elastic_timeout=settings.elastic_timeout,
            reset_limit=settings.reset_limit,
        )
        source = _Discovered(settings.discovery)
        store_at = store_variables(address, port)
        job = ElasticJob(
            options, source, store, group, lambda host: store_at, report=logger.warning
        )
        try:
            job.run()
        finally:
            group.stop_all()
        return [group.values[number] for number in job.members if number in group.values]


class _Discovered:
    """Hosts that a discovery finds, at most once a second."""

    can_change = True

    def __init__(self, discovery: Any) -> None:
        self._discovery = discovery
        self._hosts: list[HostSlots] = []
        self._looked_at = -_PERIOD_SECONDS
        self._problem = ""

    def hosts(self) -> list[HostSlots]:
        """The hosts at the last look; while the discovery fails, those that it found last."""
        now = time.monotonic()
        if now - self._looked_at < _PERIOD_SECONDS:
            return self._hosts
        self._looked_at = now
        try:
            found = self._discovery.find_available_hosts_and_slots()
            self._hosts = [HostSlots(name, int(slots)) for name, slots in found.items()]
            self._problem = ""
        except Exception as error:  # it may be the user's
            problem = f"the hosts cannot be found: {type(error).__name__}: {error}"
            if problem != self._problem:
                logger.warning("%s", problem.partition("\n")[0])
            self._problem = problem
        return self._hosts


class ActorGroup:
    """The workers of an elastic job, which have numbers in the order of their starts.

    Args:
        call: reference to the function, its arguments and keywords.
        resources: of each worker.

    Attributes:
        values: what the function returned, by number of the worker.
    """

    def __init__(self, call: Any, resources: Resources) -> None:
        self._call, self._resources = call, resources
        self._actors: list[Any] = []
        self._numbers: dict[Any, int] = {}
        self._hosts: list[str] = []
        self.values: dict[int, Any] = {}

    @property
    def num_started(self) -> int:
        """How many were started: the number of the next."""
        return len(self._actors)

    def start(self, host: str, variables: Mapping[str, str]) -> int:
        """Starts a worker on the node with this address, and returns its number."""
        from taco_train.lightcc.on_ray import cluster

        number = len(self._actors)
        actor = cluster.start_on(host, self._resources)
        if self._resources.gpus:
            here = next((one for one in cluster.nodes() if one.address == host), None)
            count = int(here.resources.get("GPU", 0)) if here else 0
            devices = ",".join(map(str, range(count)))
            variables = {**variables, "CUDA_VISIBLE_DEVICES": devices}
        actor.set_variables.remote(dict(variables))
        self._numbers[actor.train.remote(self._call)] = number
        self._actors.append(actor)
        self._hosts.append(host)
        return number

    def next_event(self, seconds: float) -> Event | None:
        """The next end of a worker; None where none ends within this time."""
        from taco_train.lightcc.on_ray import cluster

        done = cluster.wait(list(self._numbers), seconds)
        if not done:
            return None
        number = self._numbers.pop(done[0])
        error = cluster.error_of(done[0])
        if error is None:
            self.values[number] = cluster.value(done[0])
        else:
            logger.warning(
                "worker %d on host %s: %s", number, self._hosts[number], cluster.first_line(error)
            )
        cluster.end(self._actors[number])
        return Ended(number, 0 if error is None else _FAILED)

    def stop(self, number: int) -> None:
        """Ends one worker; its Ended comes later."""
        from taco_train.lightcc.on_ray import cluster

        cluster.end(self._actors[number])

    def stop_all(self) -> None:
        """Ends all workers."""
        for number in self._numbers.values():
            self.stop(number)
