"""Settings of jobs on Ray, and the variables that their ranks get from the driver."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from taco_train.cluster.hosts import INTERFACE_VARIABLES
from taco_train.lightcc.settings import settings_from
from taco_train.lightcc.variables import VARIABLES, WITHOUT_MEANING


@dataclass(slots=True)
class RaySettings:
    """Of a job whose number of ranks is fixed.

    Attributes:
        timeout_s: maximum seconds until all workers have started.
        placement_group_timeout_s: maximum seconds until the cluster has room for all workers.
        nics: names of network interfaces; the first that a node has carries the gradients.
    """

    timeout_s: float = 300
    placement_group_timeout_s: float = 100
    nics: Collection[str] = ()


@dataclass(slots=True)
class ElasticRaySettings:
    """Of an elastic job.

    Attributes:
        min_num_proc, max_num_proc: fewest and most ranks; None: as many as the cluster has room
            for.
        reset_limit: how often ranks may connect anew; None: without a limit.
        elastic_timeout: maximum seconds to wait for enough ranks after one was lost.
        timeout_s: maximum seconds that the first round waits for workers that start.
        nics: as in `RaySettings`.
        discovery: has `find_available_hosts_and_slots()`, which gives slots by address of a node.
    """

    min_num_proc: int = 1
    max_num_proc: int | None = None
    reset_limit: int | None = None
    elastic_timeout: float = 600
    timeout_s: float = 30
    nics: Collection[str] = ()
    discovery: Any = None

    def __post_init__(self) -> None:
        if self.min_num_proc < 1:
            raise ValueError(f"min_num_proc is {self.min_num_proc}; it must be at least 1")
        if self.max_num_proc is not None and self.max_num_proc < self.min_num_proc:
            raise ValueError(
                f"max_num_proc is {self.max_num_proc}; it must be at least min_num_proc, "
                f"{self.min_num_proc}"
            )


def worker_variables(
    nics: Collection[str], own: Mapping[str, object] | None, environment: Mapping[str, str]
) -> dict[str, str]:
    """The variables that workers get, beside those of their ranks.

    Ray's workers have the environment of their node. LightCC's variables of the driver are passed
    on, so that `LIGHT_TOPK_ALLREDUCE=1 python driver.py` does what it says.

    Args:
        nics: of the settings.
        own: what the caller sets; wins.
        environment: of the driver.

    Raises:
        VariableError: a variable has a value that it cannot have.
    """
    names = [one.name for one in VARIABLES] + list(WITHOUT_MEANING) + list(INTERFACE_VARIABLES)
    found = {name: environment[name] for name in names if name in environment}
    if nics:
        found[INTERFACE_VARIABLES[0]] = nics if isinstance(nics, str) else ",".join(nics)
    found.update({name: str(value) for name, value in (own or {}).items()})
    settings_from({**os.environ, **found})
    return found
