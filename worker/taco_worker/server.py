"""The worker as a service: loads its model, dials the scheduler, and stays with it."""

import asyncio
import gc
import logging
import os
import random
import signal
import time
from typing import Any

from taco_proto.config import WorkerConfig
from taco_proto.errors import ConfigurationError
from taco_proto.logging import configure_logging
from taco_worker.model_thread import ModelThread
from taco_worker.scheduler_link import Executor, SchedulerLink

_FIRST_DELAY_SECONDS = 0.1
_LONGEST_DELAY_SECONDS = 5.0

logger = logging.getLogger("taco.worker")


def run_worker(config: WorkerConfig) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code. Call it from the main thread.

    A scheduler that is not there, or goes away, is dialled again with growing delays.
    """
    configure_logging("worker")
    thread = ModelThread()
    try:
        exit_code = asyncio.run(_serve(config, thread))
    except ConfigurationError as error:
        logger.error("%s", error)
        return 1
    if thread.is_busy:
        # An interpreter that ends while a thread is inside torch aborts.
        logging.shutdown()
        os._exit(exit_code)
    return exit_code


async def _serve(config: WorkerConfig, thread: ModelThread) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stop.set)

    loading = asyncio.wrap_future(thread.submit(lambda: _load(config)))
    stopped = asyncio.ensure_future(stop.wait())
    first: set[asyncio.Future[Any]] = {loading, stopped}
    await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
    if stop.is_set():
        return 0
    worker = await loading
    thread.when_idle = worker.tune
    await _stay_attached(config.scheduler, worker, thread, stop)
    if worker.is_broken:
        logger.error("the device has failed; a new process has to take over")
        return 1
    logger.info("stopped")
    return 0


def _load(config: WorkerConfig) -> Executor:
    # Torch takes seconds to import: not before the signal handlers are there. What it would say
    # when a signal comes meanwhile concerns nobody.
    logging.getLogger("torch").setLevel(logging.WARNING)
    # For torch without the CPU kernels; beside them it has one thread. OpenMP reads it as torch is
    # imported. By default its threads spin at every barrier, so that one of them that gateway,
    # scheduler or another program has pushed off its core holds up all others for whole time
    # slices: a decode step takes up to fifty times as long. Threads that sleep instead cost some
    # wake-ups on a machine without other work (bench/worker_threads.py).
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from taco_worker.worker import Worker

    worker = Worker(config)
    gc.freeze()  # what is loaded stays: the collector need not walk it during steps
    return worker


async def _stay_attached(
    address: str, worker: Executor, thread: ModelThread, stop: asyncio.Event
) -> None:
    delay = _FIRST_DELAY_SECONDS
    reason = ""
    while not stop.is_set():
        link = SchedulerLink(address, worker, thread)
        started = time.monotonic()
        last_reason, reason = reason, await link.run(stop)
        if stop.is_set() or worker.is_broken:
            return
        if link.num_plans or time.monotonic() - started > _LONGEST_DELAY_SECONDS:
            delay = _FIRST_DELAY_SECONDS
        if reason != last_reason:
            logger.warning("no link to the scheduler at %s (%s); dialling again", address, reason)
        # Spread out, so that the workers of a scheduler that restarts do not dial in step.
        await _wait(stop, delay * random.uniform(0.5, 1.0))
        delay = min(2 * delay, _LONGEST_DELAY_SECONDS)


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return
