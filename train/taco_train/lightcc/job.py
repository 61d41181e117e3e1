"""A process's part in a training job: its rank, connections, and the engine of its collectives."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from taco_train.cluster.ranks import Placement
from taco_train.cluster.store import KeyValueStore
from taco_train.collective.communicator import Communicator
from taco_train.collective.errors import CommunicationError
from taco_train.collective.levels import make_layout
from taco_train.collective.store import connect as find_ranks
from taco_train.lightcc.bucket_reducer import BucketReducer
from taco_train.lightcc.collective_runner import CollectiveRunner
from taco_train.lightcc.engine import Engine
from taco_train.lightcc.negotiation.bucket_planner import BucketPlanner
from taco_train.lightcc.negotiation.coordinator import Coordinator
from taco_train.lightcc.negotiation.coordinator_server import (
    TOKEN_BYTES,
    CoordinatorServer,
    StallLimits,
)
from taco_train.lightcc.negotiation.messages import Batch
from taco_train.lightcc.negotiation.rank_link import RankLink, connect
from taco_train.lightcc.settings import Settings, agreed_values
from taco_train.lightcc.timeline import Timeline
from taco_train.lightcc.variables import VariableError

_DEFAULT_FUSION_BYTES = 64 * 2**20
START_SECONDS = 300.0
_ADDRESS_KEY = "lightcc/coordinator"


@dataclass(frozen=True, slots=True)
class Job:
    """What `open_job` made.

    Attributes:
        communicator: of all ranks; the engine's thread uses it.
        server: the coordinator, on rank 0.
    """

    placement: Placement
    settings: Settings
    communicator: Communicator
    reducer: BucketReducer
    runner: CollectiveRunner
    engine: Engine
    timeline: Timeline
    server: CoordinatorServer | None

    def close(self) -> None:
        """Leave the job."""
        self.engine.close()
        self.runner.close()
        self.reducer.close()
        self.communicator.close()
        if self.server is not None:
            self.server.close()
        self.timeline.stop()


def make_job(placement: Placement, store: KeyValueStore, settings: Settings) -> Job:
    """Connect this process to the others of the job.

    Raises:
        VariableError: the timeline's file cannot be written.
        CommunicationError: a rank did not come, or cannot be reached.
    """
    with ExitStack() as made:  # what is made ends where the rest cannot be
        job = _make_job(placement, store, settings, made)
        made.pop_all()
        return job


def _make_job(
    placement: Placement, store: KeyValueStore, settings: Settings, made: ExitStack
) -> Job:
    reducer = BucketReducer(settings, plans_fusion=settings.fusion_bytes is None)
    server = _serve(placement, store, settings, reducer) if placement.rank == 0 else None
    if server is not None:
        made.callback(server.close)
    communicator = Communicator(
        placement,
        store,
        timeout_seconds=settings.timeout_seconds,
        levels=settings.levels,
    )
    made.callback(communicator.close)
    timeline = Timeline(placement.rank)
    if settings.timeline and placement.rank == 0:
        try:
            timeline.start(settings.timeline, marks_cycles=settings.timeline_marks_cycles)
        except OSError as error:
            raise VariableError(
                f"HOROVOD_TIMELINE is {settings.timeline!r}; it must be a file that rank 0 can "
                f"write: {error.strerror}"
            ) from None
    connection = _connect(store, placement.rank)
    made.callback(connection.close)
    communicator.barrier()  # rank 0 may leave as soon as it is here: all must have connected

    def link(on_batch: Callable[[Batch], None], on_lost: Callable[[str], None]) -> RankLink:
        return RankLink(
            connection,
            cycle_seconds=settings.cycle_seconds,
            on_batch=on_batch,
            on_lost=on_lost,
            silent_seconds=settings.stall_fail_seconds,
        )

    runner = CollectiveRunner(communicator, reducer)
    return Job(
        placement,
        settings,
        communicator,
        reducer,
        runner,
        Engine(runner, link, timeline),
        timeline,
        server,
    )


def _serve(
    placement: Placement, store: KeyValueStore, settings: Settings, reducer: BucketReducer
) -> CoordinatorServer:
    """Start the coordinator, and tell the ranks where it is."""
    fusion = settings.fusion_bytes
    layout = make_layout(0, placement.hosts, settings.levels)
    is_planned = fusion is None and len(layout.domains) > 1
    coordinator = Coordinator(
        placement.size,
        fusion_bytes=_DEFAULT_FUSION_BYTES if fusion is None else fusion,
        num_ids=settings.cache_capacity,
        planner=BucketPlanner(reducer.fusion_bytes) if is_planned else None,
    )
    warn_seconds = 0.0 if settings.stall_check_disabled else settings.stall_warn_seconds
    token = secrets.token_bytes(TOKEN_BYTES)
    address = placement.addresses[0] if placement.addresses else "127.0.0.1"
    server = CoordinatorServer(
        coordinator,
        placement.size,
        address=address,
        token=token,
        limits=StallLimits(warn_seconds, settings.stall_fail_seconds),
    )
    server.start()
    store.set(_ADDRESS_KEY, f"{address} {server.port} {token.hex()}")
    return server


def _connect(store: KeyValueStore, rank: int) -> socket.socket:
    """Connect to rank 0's coordinator."""
    address, port, token = store.get(_ADDRESS_KEY).decode().rsplit(" ", 2)
    try:
        return connect(address, int(port), token=bytes.fromhex(token), rank=rank)
    except OSError as error:
        raise CommunicationError(
            f"rank 0 is gone, or {address}:{port} cannot be reached from rank {rank}: {error}",
            rank=0,
            stage="connecting",
        ) from error


def open_job(
    settings: Settings,
    environment: Mapping[str, str] | None = None,
    *,
    generation: str | None = None,
    timeout: float = START_SECONDS,
) -> Job:
    """Find the other processes, as the launcher's variables say, and connect to them.

    Args:
        environment: None: the process's.
        generation: of the ranks that connect together; None: how often this process has.
        timeout: seconds to wait for the other processes.

    Raises:
        ConfigurationError: variables are wrong, or differ between ranks.
        RendezvousError: a rank did not come.
        CommunicationError: a rank cannot be reached.
    """
    placement, store = find_ranks(
        environment, timeout=timeout, generation=generation, agreed=agreed_values(settings)
    )
    return make_job(placement, store, settings)
