"""The Ray cluster: nodes, actors on them, what becomes of calls. Only this file imports Ray.

Ray pickles functions, arguments and values, and passes them between its own processes.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Ray sends no usage statistics unless the operator allows it.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
try:
    import ray
except ImportError:
    raise ImportError("horovod.ray needs Ray: pip install 'light-horovod[ray]'") from None

from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.placement_group import (
    PlacementGroup,
    get_current_placement_group,
    placement_group,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from taco_train.cluster.actors import ActorAddress, describe_actor
from taco_train.lightcc.errors import CollectiveError
from taco_train.lightcc.launcher.rank_group import JobError
from taco_train.lightcc.on_ray.worker import Worker
from taco_train.lightcc.on_ray.workers import Groups, Resources

logger = logging.getLogger(__name__)
# A rank that waits for one that is lost has an error within this time.
_OTHERS_SECONDS = 10.0
_ANY_BUNDLE = -1


class HorovodWorker(Worker):
    """An actor; Ray's log names it."""

    def describe(self) -> tuple[ActorAddress, list[str]]:
        """Where it is, and the GPUs that Ray gave it."""
        node = ray.util.get_node_ip_address()
        return describe_actor(node, node), [str(number) for number in ray.get_gpu_ids()]


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster, by its address: what Ray has there in all."""

    address: str
    resources: dict[str, float]


class Reservation:
    """CPUs and GPUs that Ray keeps for the workers of a job: a placement group.

    Args:
        groups: of workers.
        resources: of each worker.
        uses_current: takes the placement group in which the caller runs, where there is one.
        timeout: maximum seconds until the cluster has them.

    Raises:
        TimeoutError: it has not enough within that time; the message says what it has.
    """

    def __init__(
        self, groups: Groups, resources: Resources, *, uses_current: bool, timeout: float
    ) -> None:
        current = get_current_placement_group() if uses_current else None
        self._owns = current is None
        if current is not None:
            self.group: PlacementGroup = current
            self.bundles = [_ANY_BUNDLE] * groups.num_workers
            return
        bundle = resources.times(groups.size) or {"CPU": 0.001}  # Ray has no empty ones
        strategy = "STRICT_SPREAD" if groups.is_spread else "PACK"
        self.group = placement_group([bundle] * groups.count, strategy=strategy)
        self.bundles = [index for index in range(groups.count) for _ in range(groups.size)]
        if not self.group.wait(timeout_seconds=timeout):
            self.release()
            total = ray.cluster_resources()
            raise TimeoutError(
                f"the Ray cluster has no room for {groups} with {resources} each within "
                f"{timeout:g} s: its {len(nodes())} nodes have {total.get('CPU', 0):g} CPUs and "
                f"{total.get('GPU', 0):g} GPUs, and other jobs may use some (see `ray status`)"
            )

    def release(self) -> None:
        """Gives them back, unless the placement group is the caller's."""
        if self._owns:
            remove_placement_group(self.group)


def connect() -> None:
    """Connects to the cluster of RAY_ADDRESS or of this machine, or starts one, as Ray does."""
    if not ray.is_initialized():
        ray.init()


def start_in(reservation: Reservation, bundle: int, resources: Resources) -> Any:
    """An actor in a bundle."""
    strategy = PlacementGroupSchedulingStrategy(
        placement_group=reservation.group, placement_group_bundle_index=bundle
    )
    return _start(resources, scheduling_strategy=strategy)


def start_on(address: str, resources: Resources) -> Any:
    """An actor on the node with an address."""
    return _start(resources, resources={f"node:{address}": 0.001})


def _start(needs: Resources, **options: Any) -> Any:
    made = ray.remote(HorovodWorker)
    return made.options(num_cpus=needs.cpus, num_gpus=needs.gpus, **options).remote()


def nodes() -> list[Node]:
    """The nodes that are alive."""
    return [
        Node(node["NodeManagerAddress"], node["Resources"]) for node in ray.nodes() if node["Alive"]
    ]


def own_address() -> str:
    """This machine's address in the cluster.

    Raises:
        ValueError: this process is not on a node of the cluster.
    """
    if ray.util.client.ray.is_connected():
        raise ValueError(
            "an elastic job cannot be run through Ray Client (ray://...): run the driver on a node "
            "of the cluster, e.g. by `ray job submit`"
        )
    return str(ray.util.get_node_ip_address())


def put(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A reference to a function, or class, and its arguments: Ray pickles them once for all.

    Raises:
        TypeError: one line that says why they cannot be pickled.
    """
    try:
        return ray.put((function, list(args), dict(kwargs)))
    except Exception as error:  # pickle raises many kinds
        cause = error.__cause__ or error.__context__ or error
        reason = str(cause).strip().partition("\n")[0]
        name = getattr(function, "__name__", type(function).__name__)
        raise TypeError(
            f"{name} or its arguments cannot be sent to the workers: {reason}; make such objects "
            "inside the function"
        ) from None


def describe(actors: Sequence[Any], timeout: float) -> list[tuple[ActorAddress, list[str]]]:
    """Where actors are, once they have started.

    Raises:
        TimeoutError: some have not started within `timeout` seconds.
        JobError: an actor has died.
    """
    references = [actor.describe.remote() for actor in actors]
    try:
        found: list[tuple[ActorAddress, list[str]]] = ray.get(references, timeout=timeout)
        return found
    except GetTimeoutError:
        done, _ = ray.wait(references, num_returns=len(references), timeout=0)
        raise TimeoutError(
            f"{len(done)} of {len(actors)} workers have started within {timeout:g} s: the others "
            "wait for CPUs or GPUs (see `ray status`), or raise timeout_s"
        ) from None
    except RayActorError as error:
        raise JobError(f"a worker could not start: {first_line(error)}") from None


def values(references: Sequence[Any], hosts: Sequence[str]) -> list[Any]:
    """What calls returned, by rank.

    Raises:
        JobError: a worker has died.
        Exception: what a rank's function raised, with a note that names the rank; where ranks have
            failed because another one did, that one's.
    """
    ranks = {reference: rank for rank, reference in enumerate(references)}
    waiting, failed = list(references), {}
    deadline: float | None = None
    while waiting:
        seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
        done, waiting = ray.wait(waiting, timeout=seconds)
        if not done:
            break
        for reference in done:
            error = error_of(reference)
            if error is not None:
                failed[ranks[reference]] = error
                deadline = deadline or time.monotonic() + _OTHERS_SECONDS
    if not failed:
        found: list[Any] = ray.get(list(references))
        return found
    rank = min(failed, key=lambda one: (isinstance(failed[one], CollectiveError), one))
    error = failed[rank]
    if isinstance(error, RayActorError):
        raise JobError(f"rank {rank} on host {hosts[rank]} has died: {first_line(error)}") from None
    error.add_note(f"raised by rank {rank} on host {hosts[rank]}")
    raise error


def error_of(reference: Any) -> Exception | None:
    """The error of a call that has ended; None where it returned a value."""
    try:
        ray.get(reference)
    except RayTaskError as error:
        cause = error.cause
        return cause if isinstance(cause, CollectiveError) else error
    except RayError as error:
        return error
    return None


def wait(references: Sequence[Any], seconds: float) -> list[Any]:
    """Those of the calls that have ended, after one has or `seconds` have passed."""
    if not references:
        time.sleep(seconds)
        return []
    done: list[Any] = ray.wait(list(references), timeout=seconds)[0]
    return done


def value(reference: Any) -> Any:
    """What a call returned."""
    return ray.get(reference)


def end(actor: Any) -> None:
    """Ends an actor's process."""
    ray.kill(actor)


def first_line(error: Exception) -> str:
    """Of an error of Ray, what happened in words."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if isinstance(error, RayTaskError) else lines[0]
