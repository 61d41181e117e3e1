"""A process around one model: it loads the model, dials the scheduler, and stays with it."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from taco_common.admin import serving_admin
from taco_common.logging import configure_logging
from taco_common.tls import Role
from taco_proto.config import DrafterConfig, WorkerConfig
from taco_proto.errors import ConfigurationError
from taco_worker.model_thread import ModelThread

if TYPE_CHECKING:  # processes without an admin listener do not pay for it
    from prometheus_client import Metric

Model = TypeVar("Model")

_FIRST_BACKOFF_SECONDS = 0.1
_MAX_BACKOFF_SECONDS = 5.0
# An outage that is shorter is not logged.
_QUIET_SECONDS = 1.0


class Link(Protocol):
    """One stream to the scheduler; see `StreamLink`."""

    is_used: bool
    is_attached: bool
    was_attached: bool
    failure: str

    async def run(self, stop: asyncio.Event) -> str: ...


class ModelService:
    """What the parts of a model's process share.

    Attributes:
        thread: the only one to use the model.
        stop: set once the process is to end.
        link: the latest one to the scheduler; None: none was dialled yet.
        metrics: gives those of the model that is served, whenever somebody asks.
    """

    def __init__(self) -> None:
        self.thread = ModelThread()
        self.stop = asyncio.Event()
        self.is_loaded = False
        self.link: Link | None = None
        self.metrics: Callable[[], Iterable[Metric]] = lambda: ()

    def why_not_ready(self) -> str | None:
        """Why nothing runs here; None: the scheduler may send what is to be done."""
        if self.stop.is_set():
            return "draining"
        if not self.is_loaded:
            return "the model is not loaded yet"
        return None if self.is_attached else "not attached to the scheduler"

    @property
    def is_attached(self) -> bool:
        """Whether the scheduler has taken the process in."""
        return self.link is not None and self.link.is_attached


def run_model_service(
    role: Role,
    config: WorkerConfig | DrafterConfig,
    load: Callable[[], Model],
    serve: Callable[[Model, ModelService], Awaitable[int]],
) -> int:
    """Load a model and serve until SIGTERM or SIGINT; call it from the main thread.

    A second signal waits for nothing that is done here.

    Args:
        config: of it are read where probes and metrics are, which are there while the model loads,
            too, and the certificate.
        load: runs in the model's thread, which is the only one to use the model later.
        serve: is to return its exit code once `stop` is set and what it does is done; or it is
            cancelled.

    Returns:
        The exit code.
    """
    logger = configure_logging(role)
    service = ModelService()
    try:
        exit_code = asyncio.run(_serve(role, config, load, serve, service))
    except ConfigurationError as error:
        logger.error("%s", error)
        return 1
    if service.thread.is_busy:
        # An interpreter that ends while a thread is inside torch aborts.
        logging.shutdown()
        os._exit(exit_code)
    return exit_code


async def _serve(
    role: Role,
    config: WorkerConfig | DrafterConfig,
    load: Callable[[], Model],
    serve: Callable[[Model, ModelService], Awaitable[int]],
    service: ModelService,
) -> int:
    async with _serving_admin(role, config, service):
        return await _load_and_serve(load, serve, service)


def _serving_admin(
    role: Role, config: WorkerConfig | DrafterConfig, service: ModelService
) -> AbstractAsyncContextManager[None]:
    if config.admin_listen is None:
        return nullcontext()
    from taco_common.metrics import LateCollector, exposition_in_thread, process_registry

    registry = process_registry(role, config.tls)
    registry.register(LateCollector(lambda: service.metrics()))
    return serving_admin(
        config.admin_listen, service.why_not_ready, lambda: exposition_in_thread(registry)
    )


async def _load_and_serve(
    load: Callable[[], Model],
    serve: Callable[[Model, ModelService], Awaitable[int]],
    service: ModelService,
) -> int:
    stop, hurry = service.stop, asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, on_signal)

    loading = asyncio.wrap_future(service.thread.submit(lambda: _load(load)))
    stopped = asyncio.ensure_future(stop.wait())
    first: set[asyncio.Future[Any]] = {loading, stopped}
    await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
    if stop.is_set():
        return 0
    model = await loading
    service.is_loaded = True
    serving = asyncio.ensure_future(serve(model, service))
    hurried = asyncio.ensure_future(hurry.wait())
    await asyncio.wait({serving, hurried}, return_when=asyncio.FIRST_COMPLETED)
    if not serving.done():
        serving.cancel()
        await asyncio.wait({serving})
        return 0
    return serving.result()


def _load(load: Callable[[], Model]) -> Model:
    # Torch takes seconds to import: not before the signal handlers are there. What it would say
    # when a signal comes meanwhile concerns nobody.
    logging.getLogger("torch").setLevel(logging.WARNING)
    # For torch without the CPU kernels; beside them it has one thread. OpenMP reads it as torch is
    # imported. By default its threads spin at every barrier, so that one of them that gateway,
    # scheduler or another program has pushed off its core holds up all others for whole time
    # slices: a decode step takes up to fifty times as long. Threads that sleep instead cost some
    # wake-ups on a machine without other work (bench/worker/threads.py).
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    model = load()
    gc.freeze()  # what is loaded stays: the collector need not walk it during steps
    return model


async def stay_attached(
    address: str, connect: Callable[[], Link], service: ModelService, logger: logging.Logger
) -> int:
    """Serve over one link after the other, dialling again with growing delays.

    Returns:
        The exit code: 1 once a link says that the process cannot go on.
    """
    backoff = _FIRST_BACKOFF_SECONDS
    reported = ""
    lost_at = time.monotonic()
    stop = service.stop
    while not stop.is_set():
        service.link = link = connect()
        started = time.monotonic()
        reason = await link.run(stop)
        if link.failure:
            logger.error("%s", link.failure)
            return 1
        if stop.is_set():
            break
        ended = time.monotonic()
        if link.is_used or ended - started > _MAX_BACKOFF_SECONDS:
            backoff = _FIRST_BACKOFF_SECONDS
        if link.was_attached:
            lost_at, reported = ended, ""
        # A scheduler that stops with this process, or starts beside it, is no event.
        if reason != reported and ended - lost_at >= _QUIET_SECONDS:
            reported = reason
            logger.warning("no link to the scheduler at %s (%s); dialling again", address, reason)
        # Spread out, so that the workers of a scheduler that restarts do not dial in step.
        await _wait(stop, backoff * random.uniform(0.5, 1.0))
        backoff = min(2 * backoff, _MAX_BACKOFF_SECONDS)
    logger.info("stopped")
    return 0


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return
