"""The draft worker service: loads the model, attaches to the scheduler and serves metrics."""

import logging
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING

from taco_common.tls import Role
from taco_draft.scheduler_link import DraftSchedulerLink, Runner
from taco_proto.config import DrafterConfig
from taco_worker.lean_torch import lean_torch
from taco_worker.model_service import ModelService, run_model_service
from taco_worker.reconnection import stay_connected

if TYPE_CHECKING:
    from prometheus_client import Metric

logger = logging.getLogger("taco.draft-worker")


def run_draft_worker(config: DrafterConfig) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code. Call it from the main thread.

    If the scheduler is unreachable or the connection is lost, the draft worker reconnects with
    back-off. It exits if the scheduler rejects it for its protocol version or vocabulary.
    """

    def serve(runner: Runner, service: ModelService) -> Awaitable[int]:
        service.metrics = lambda: _metrics(runner, service)

        def connect() -> DraftSchedulerLink:
            return DraftSchedulerLink(config.scheduler, runner, service.thread, config.tls)

        return stay_connected(config.scheduler, connect, service, logger)

    return run_model_service(Role.DRAFT_WORKER, config, lambda: _load(config), serve)


def _metrics(runner: Runner, service: ModelService) -> "Iterable[Metric]":
    from taco_draft.metrics import draft_metrics  # imported on the first scrape

    return draft_metrics(runner, service)


def _load(config: DrafterConfig) -> Runner:
    with lean_torch("cpu"):
        from taco_draft.draft_runner import DraftRunner

        return DraftRunner(config)
