"""What an elastic job's launcher and its workers say to each other, through the launcher's store.

A worker that is ready for a round adds to its counter, and waits for the answer of that number. A
round is a job with fixed ranks; its workers connect under its generation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from taco_train.cluster.store import KeyValueStore

WORKER_VARIABLE = "HOROVOD_ELASTIC_WORKER"
ELASTIC_VARIABLE = "HOROVOD_ELASTIC"
TIMEOUT_VARIABLE = "HOROVOD_ELASTIC_TIMEOUT"
_UPDATES = "elastic/updates"


@dataclass(frozen=True)
class Answer:
    """The launcher's answer to a worker that is ready.

    Attributes:
        variables: of its launcher's environment in the round.
        generation: of the round.
        updates: how often the hosts had changed.
        leaves: the worker is not needed any more; it ends.
        error: no round will come: why.
    """

    variables: Mapping[str, str]
    generation: str = ""
    updates: int = 0
    leaves: bool = False
    error: str = ""


def become_ready(store: KeyValueStore, worker: str) -> Answer:
    """Says that a worker waits for a round, and waits.

    Raises:
        RendezvousError: no round comes within the store's time limit, or the launcher is gone.
    """
    number = store.add(f"elastic/{worker}/ready", 1)
    return Answer(**json.loads(store.get(f"elastic/{worker}/answer/{number}")))


def ready_count(store: KeyValueStore, worker: str) -> int:
    """How often a worker has become ready."""
    return store.add(f"elastic/{worker}/ready", 0)


def answer(store: KeyValueStore, worker: str, number: int, said: Answer) -> None:
    """Answers the worker that is ready for the `number`th time."""
    store.set(f"elastic/{worker}/answer/{number}", json.dumps(asdict(said)))


def note_update(store: KeyValueStore) -> None:
    """Asks the workers to end their round at the next commit."""
    store.add(_UPDATES, 1)


def update_count(store: KeyValueStore) -> int:
    """How often they were asked."""
    return store.add(_UPDATES, 0)
