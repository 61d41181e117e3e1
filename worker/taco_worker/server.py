"""The worker as a service."""

import asyncio
import logging
from collections.abc import Awaitable

from taco_proto.config import WorkerConfig
from taco_worker.model_service import run_model_service, stay_attached
from taco_worker.model_thread import ModelThread
from taco_worker.scheduler_link import Executor, SchedulerLink

logger = logging.getLogger("taco.worker")


def run_worker(config: WorkerConfig) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code. Call it from the main thread.

    A scheduler that is not there, or goes away, is dialled again with growing delays.
    """

    def serve(worker: Executor, thread: ModelThread, stop: asyncio.Event) -> Awaitable[int]:
        thread.when_idle = worker.tune
        address = config.scheduler
        return stay_attached(address, lambda: SchedulerLink(address, worker, thread), stop, logger)

    return run_model_service("worker", lambda: _load(config), serve)


def _load(config: WorkerConfig) -> Executor:
    from taco_worker.worker import Worker

    return Worker(config)
