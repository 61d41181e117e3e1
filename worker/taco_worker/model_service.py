"""The life of a model's process: loading, readiness, signals and drain."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from taco_common.admin import serving_admin
from taco_common.free_memory import return_free_memory
from taco_common.logging import configure_logging
from taco_common.tls import Role
from taco_proto.config import DrafterConfig, WorkerConfig
from taco_proto.errors import ConfigurationError
from taco_worker.model_thread import ModelThread

if TYPE_CHECKING:  # imported only by processes with an admin listener
    from prometheus_client import Metric

Model = TypeVar("Model")


class Link(Protocol):
    """One stream to the scheduler; see `StreamLink`."""

    is_used: bool
    is_attached: bool
    was_attached: bool
    failure: str

    async def run(self, stop: asyncio.Event) -> str: ...


class ModelService:
    """State shared by the parts of a model's process.

    Attributes:
        thread: the only thread that uses the model.
        stop: set once the process is to end.
        link: the current or last link to the scheduler; None before the first dial.
        metrics: returns the model's metrics at each scrape.
    """

    def __init__(self) -> None:
        self.thread = ModelThread()
        self.stop = asyncio.Event()
        self.is_loaded = False
        self.link: Link | None = None
        self.metrics: Callable[[], Iterable[Metric]] = lambda: ()

    def why_not_ready(self) -> str | None:
        """The reason of a failing readiness probe; None: the process is ready for requests."""
        if self.stop.is_set():
            return "draining"
        if not self.is_loaded:
            return "the model is not loaded yet"
        return None if self.is_attached else "not attached to the scheduler"

    @property
    def is_attached(self) -> bool:
        """Whether the scheduler has accepted the process."""
        return self.link is not None and self.link.is_attached


def run_model_service(
    role: Role,
    config: WorkerConfig | DrafterConfig,
    load: Callable[[], Model],
    serve: Callable[[Model, ModelService], Awaitable[int]],
) -> int:
    """Load a model and serve until SIGTERM or SIGINT; call it from the main thread.

    The first signal drains; a second one ends the process without waiting.

    Args:
        config: used here for the admin listener's address, which serves probes and metrics while
            the model loads too, and for the certificate.
        load: runs in the model's thread, the only thread that uses the model later.
        serve: returns the exit code once `stop` is set and its work is done. It may be cancelled.

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
        # The interpreter aborts if it ends while a thread runs inside torch.
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
    # Importing torch takes seconds, so the signal handlers are installed first. Silence torch's
    # own messages about a signal that arrives meanwhile.
    logging.getLogger("torch").setLevel(logging.WARNING)
    # OpenMP reads this variable when torch is imported; it matters where torch serves without the
    # CPU kernels. By default OpenMP threads spin at every barrier. If another program, such as the
    # gateway or the scheduler, takes the core of one thread, all others wait for whole time slices:
    # a decode step takes up to fifty times as long. Sleeping threads cost some wake-ups on a
    # machine without other work (bench/worker/threads.py).
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Nearly every imported and loaded object stays. Automatic collections would visit it again and
    # again, for about a tenth of the start's CPU time.
    gc.disable()
    try:
        model = load()
    finally:
        gc.enable()
    gc.collect()
    return_free_memory()
    gc.freeze()  # and need not visit it during steps either
    return model
