"""The ranks of torch's process group as ranks of LightCC, for its hooks."""

from __future__ import annotations

import os

import torch.distributed as dist

from taco_train.cluster.launch import detect
from taco_train.cluster.store import ConfigurationError
from taco_train.collective.communicator import Communicator
from taco_train.collective.store import connect
from taco_train.lightcc.settings import Settings, agreed_values


def connect_process_group(settings: Settings, name: str) -> Communicator:
    """Connect the ranks of torch's default process group; all of them call it together.

    They find each other by the launcher's variables. Without these, as in processes of
    torch.multiprocessing.spawn, by MASTER_ADDR and MASTER_PORT, and the numbers of the group.

    Args:
        name: of the communicator.

    Raises:
        ConfigurationError: the launcher's numbers are not those of the group, or settings differ
            between ranks.
        RendezvousError: the ranks cannot find each other.
        CommunicationError: a rank cannot be reached.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    environment = dict(os.environ)
    launch = detect(environment)
    if launch.launcher == "none":
        environment.update(RANK=str(rank), WORLD_SIZE=str(size))
    elif (launch.rank, launch.size) != (rank, size):
        raise ConfigurationError(
            f"this is rank {rank} of {size} in torch's process group, but rank {launch.rank} of "
            f"{launch.size} by the variables of {launch.launcher}: pass these numbers to "
            "init_process_group, or unset the variables"
        )
    placement, store = connect(environment, agreed=agreed_values(settings))
    return Communicator(
        placement,
        store,
        name=name,
        timeout_seconds=settings.timeout_seconds,
        levels=settings.levels,
    )
