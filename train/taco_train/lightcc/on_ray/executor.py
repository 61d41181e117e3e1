"""`horovod.ray.RayExecutor`: a job whose ranks are actors of Ray."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from taco_train.cluster.actors import ActorAddress, actor_environments
from taco_train.lightcc.launcher.host_slots import rank_variables
from taco_train.lightcc.on_ray.elastic import ElasticRayExecutor
from taco_train.lightcc.on_ray.settings import ElasticRaySettings, RaySettings, worker_variables
from taco_train.lightcc.on_ray.workers import Groups, Resources

if TYPE_CHECKING:
    from taco_train.lightcc.on_ray.cluster import Reservation


class RayExecutor:
    """Starts workers on a Ray cluster, and calls functions in all of them.

        executor = RayExecutor(RayExecutor.create_settings(timeout_s=30), num_workers=4)
        executor.start()
        losses = executor.run(train)  # train calls hvd.init()
        executor.shutdown()

    Args:
        settings: of `create_settings`.
        num_workers: of all ranks, which Ray packs on few nodes; or else:
        num_hosts, num_workers_per_host: nodes, and ranks on each.
        cpus_per_worker: that Ray reserves for a rank.
        use_gpu: whether ranks get GPUs. Each sees the GPUs of all ranks of its node:
            `hvd.local_rank()` is the number of the one to use.
        gpus_per_worker: 1 by default.
        use_current_placement_group: in a task or actor that runs in a placement group, workers
            take their room from it.
        min_workers, max_workers: makes the job elastic, see ElasticRayExecutor; in place of
            `num_workers`.
        reset_limit, elastic_timeout: of an elastic job.

    Raises:
        ValueError: arguments contradict each other.
    """

    @classmethod
    def create_settings(
        cls,
        timeout_s: float = 300,
        ssh_identity_file: str | None = None,
        ssh_str: str | None = None,
        placement_group_timeout_s: float = 100,
        nics: Collection[str] = (),
        **_: Any,
    ) -> RaySettings:
        """See `RaySettings`. Workers need no ssh: `ssh_identity_file` and `ssh_str` do nothing."""
        return RaySettings(timeout_s, placement_group_timeout_s, nics)

    def __init__(
        self,
        settings: RaySettings,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: float = 1,
        use_gpu: bool = False,
        gpus_per_worker: int | None = None,
        use_current_placement_group: bool = True,
        min_workers: int | None = None,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        elastic_timeout: float = 600,
    ) -> None:
        self.settings = settings
        self._resources = Resources.of(cpus_per_worker, use_gpu, gpus_per_worker)
        self._uses_current = use_current_placement_group
        self._variables: dict[str, str] = {}
        self._actors: list[Any] = []
        self._hosts: list[str] = []
        self._reservation: Reservation | None = None
        self._elastic: ElasticRayExecutor | None = None
        if min_workers is None and max_workers is None:
            self._groups = Groups.of(num_workers, num_hosts, num_workers_per_host)
            return
        if num_hosts is not None:
            raise ValueError("an elastic job has no num_hosts: set min_workers and max_workers")
        elastic = ElasticRaySettings(
            min_workers or num_workers or 1,
            max_workers,
            reset_limit,
            elastic_timeout,
            settings.timeout_s,
            settings.nics,
        )
        self._elastic = ElasticRayExecutor(elastic, use_gpu, cpus_per_worker, gpus_per_worker)

    @property
    def num_workers(self) -> int:
        """Number of ranks; of an elastic job, the fewest."""
        return self._elastic.settings.min_num_proc if self._elastic else self._groups.num_workers

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, object] | None = None,
    ) -> None:
        """Starts the workers, and makes an object of `executable_cls` in each.

        Args:
            extra_env_vars: environment variables of the workers. LightCC's own variables of this
                process are passed on without being named here.

        Raises:
            VariableError: a variable has a value that it cannot have.
            TimeoutError: the cluster has no room, or workers have not started in time.
            JobError: a worker has died.
            TypeError: the class or its arguments cannot be pickled.
        """
        from taco_train.lightcc.on_ray import cluster

        variables = worker_variables(self.settings.nics, extra_env_vars, os.environ)
        cluster.connect()
        if self._elastic is not None:
            if executable_cls is not None:
                raise ValueError("an elastic job has no executable_cls: ranks come and go")
            self._elastic.env_vars = variables
            self._elastic.start()
            return
        if self._actors:
            raise RuntimeError("the workers run already: call shutdown() first")
        executable = None
        if executable_cls is not None:
            executable = cluster.put(executable_cls, executable_args or (), executable_kwargs or {})
        try:
            self._start_actors(variables)
            if executable is not None:
                calls = [actor.make_executable.remote(executable) for actor in self._actors]
                cluster.values(calls, self._hosts)
        except BaseException:
            self.shutdown()
            raise

    def _start_actors(self, common: Mapping[str, str]) -> None:
        from taco_train.lightcc.on_ray import cluster

        self._reservation = cluster.Reservation(
            self._groups,
            self._resources,
            uses_current=self._uses_current,
            timeout=self.settings.placement_group_timeout_s,
        )
        for bundle in self._reservation.bundles:
            self._actors.append(cluster.start_in(self._reservation, bundle, self._resources))
        found = cluster.describe(self._actors, self.settings.timeout_s)
        order = _by_node([place for place, _ in found])
        self._actors = [self._actors[index] for index in order]
        places, gpus = zip(*(found[index] for index in order), strict=True)
        self._hosts = [place.node for place in places]
        ranks = zip(actor_environments(places), rank_variables(self._hosts), strict=True)
        calls = []
        for rank, (torchrun, horovod) in enumerate(ranks):
            variables = {**torchrun, **horovod, **common}
            if self._resources.gpus:
                visible = [
                    one
                    for host, some in zip(self._hosts, gpus, strict=True)
                    for one in some
                    if host == self._hosts[rank]
                ]
                variables["CUDA_VISIBLE_DEVICES"] = ",".join(visible)
            calls.append(self._actors[rank].set_variables.remote(variables))
        cluster.values(calls, self._hosts)

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Calls `fn(*args, **kwargs)` in all workers.

        Returns:
            What it returned, by rank.

        Raises:
            TypeError: the function or its arguments cannot be pickled.
            JobError: a worker has died.
            Exception: what the function raised.
        """
        if self._elastic is not None:
            return self._elastic.run_with(fn, args or (), kwargs or {})
        from taco_train.lightcc.on_ray import cluster

        return cluster.values(self.run_remote(fn, args, kwargs), self._hosts)

    def run_remote(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """As `run`, but returns Ray's references to the values, by rank, at once."""
        from taco_train.lightcc.on_ray import cluster

        call = cluster.put(fn, args or (), kwargs or {})
        return [actor.run.remote(call) for actor in self._running()]

    def execute(self, fn: Callable[[Any], Any]) -> list[Any]:
        """Calls `fn(executable)` in all workers, and returns what it returned, by rank."""
        from taco_train.lightcc.on_ray import cluster

        call = cluster.put(fn, (), {})
        calls = [actor.execute.remote(call) for actor in self._running()]
        return cluster.values(calls, self._hosts)

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Calls `fn(executable)` in the worker of rank 0, and returns what it returned."""
        from taco_train.lightcc.on_ray import cluster

        call = cluster.put(fn, (), {})
        return cluster.values([self._running()[0].execute.remote(call)], self._hosts)[0]

    def shutdown(self) -> None:
        """Ends the workers, and releases their reservation."""
        from taco_train.lightcc.on_ray import cluster

        for actor in self._actors:
            cluster.end(actor)
        self._actors = []
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None

    def _running(self) -> list[Any]:
        if self._elastic is not None:
            raise ValueError("the workers of an elastic job come and go: call run()")
        if not self._actors:
            raise RuntimeError("there are no workers: call start() first")
        return self._actors


def _by_node(places: Sequence[ActorAddress]) -> list[int]:
    """The order in which workers get ranks: those of a node are consecutive."""
    first: dict[str, int] = {}
    for index, place in enumerate(places):
        first.setdefault(place.node, index)
    return sorted(range(len(places)), key=lambda index: (first[places[index].node], index))
