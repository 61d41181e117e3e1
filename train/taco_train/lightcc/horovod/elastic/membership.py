"""A worker's part in an elastic job: it joins rounds, as the launcher says."""

from __future__ import annotations

import logging
import os
import sys

from taco_train.cluster.launch import detect
from taco_train.cluster.store import ConfigurationError, KeyValueStore, RendezvousError
from taco_train.collective.errors import CommunicationError
from taco_train.collective.store import open_store
from taco_train.lightcc import elastic_rounds
from taco_train.lightcc.job import Job, open_job
from taco_train.lightcc.settings import Settings

logger = logging.getLogger(__name__)
_CONNECT_SECONDS = 30.0
_rounds: list[tuple[KeyValueStore, int]] = []  # the store, and the updates at the round's begin


def is_elastic() -> bool:
    """Whether the launcher started an elastic job."""
    return os.environ.get(elastic_rounds.ELASTIC_VARIABLE) == "1"


def join_round(settings: Settings) -> Job:
    """Waits for the next round, and connects to its ranks; ends the process if it must leave.

    Raises:
        ConfigurationError: a variable is wrong, or differs between ranks.
        RendezvousError: no round comes, or the launcher is gone.
    """
    store = _rounds[0][0] if _rounds else _open_store()
    worker = os.environ[elastic_rounds.WORKER_VARIABLE]
    while True:
        said = elastic_rounds.become_ready(store, worker)
        if said.error:
            raise RendezvousError(f"there is no round to join: {said.error}")
        if said.leaves:
            logger.info("the job continues without this worker")
            sys.exit(0)
        os.environ.update(said.variables)  # scripts read HOROVOD_RANK, and processes they start
        _rounds[:] = [(store, said.updates)]
        try:
            return open_job(
                settings, os.environ, generation=said.generation, timeout=_CONNECT_SECONDS
            )
        except ConfigurationError:
            raise
        except (RendezvousError, CommunicationError) as error:
            logger.warning("a rank was lost while ranks connected: %s", error)


def hosts_have_changed() -> bool:
    """Whether the launcher asks for another round."""
    if not _rounds:
        return False
    store, updates = _rounds[0]
    return elastic_rounds.update_count(store) > updates


def _open_store() -> KeyValueStore:
    launch = detect({**os.environ, "HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"})
    assert launch.address is not None
    assert launch.port is not None
    seconds = float(os.environ.get(elastic_rounds.TIMEOUT_VARIABLE, "600"))
    return open_store(launch.address, launch.port, serves=False, timeout=seconds)[0]
