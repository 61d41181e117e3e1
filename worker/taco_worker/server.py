"""Runs a worker process: loads the model and serves the scheduler until SIGTERM or SIGINT."""

import logging
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING

from taco_common.tls import Role
from taco_proto.config import WorkerConfig
from taco_worker.lean_torch import lean_torch
from taco_worker.licensing import Licensing
from taco_worker.model_service import ModelService, run_model_service
from taco_worker.reconnection import stay_connected
from taco_worker.scheduler_link import Executor, SchedulerLink
from taco_worker.worker_loading import load_worker

if TYPE_CHECKING:
    from prometheus_client import Metric

logger = logging.getLogger("taco.worker")


def run_worker(config: WorkerConfig) -> int:
    """Serve until SIGTERM or SIGINT and return the exit code. Call it from the main thread.

    The worker dials the scheduler again, with a growing back-off, while it is unreachable. The
    worker requests its license while the model loads and reports the result to the scheduler.
    """
    licensing = Licensing(config)

    def load() -> Executor:
        licensing.ask()
        with lean_torch(config.device):  # not in `LLM`: its process is the user's
            return load_worker(config)

    def serve(worker: Executor, service: ModelService) -> Awaitable[int]:
        service.thread.when_idle = worker.tune
        service.metrics = lambda: _metrics(worker, service)

        def connect() -> SchedulerLink:
            return SchedulerLink(config.scheduler, worker, service.thread, config.tls, licensing)

        return stay_connected(config.scheduler, connect, service, logger)

    try:
        return run_model_service(Role.WORKER, config, load, serve)
    finally:
        licensing.close()


def _metrics(worker: Executor, service: ModelService) -> "Iterable[Metric]":
    from taco_worker.metrics import worker_metrics  # imported at the first scrape

    return worker_metrics(worker, service)
