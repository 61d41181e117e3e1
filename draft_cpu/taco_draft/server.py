"""The draft worker as a service."""

import logging
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING

from taco_common.tls import Role
from taco_draft.drafter_link import DrafterLink, Runner
from taco_proto.config import DrafterConfig
from taco_worker.model_service import ModelService, run_model_service, stay_attached

if TYPE_CHECKING:
    from prometheus_client import Metric

logger = logging.getLogger("taco.draft-worker")


def run_draft_worker(config: DrafterConfig) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code. Call it from the main thread.

    A scheduler that is not there, or goes away, is dialled again with growing delays; one that
    refuses the draft worker, for its protocol or its vocabulary, is not.
    """

    def serve(runner: Runner, service: ModelService) -> Awaitable[int]:
        service.metrics = lambda: _metrics(runner, service)

        def connect() -> DrafterLink:
            return DrafterLink(config.scheduler, runner, service.thread, config.tls)

        return stay_attached(config.scheduler, connect, service, logger)

    return run_model_service(Role.DRAFT_WORKER, config, lambda: _load(config), serve)


def _metrics(runner: Runner, service: ModelService) -> "Iterable[Metric]":
    from taco_draft.metrics import draft_metrics  # only where somebody scrapes

    return draft_metrics(runner, service)


def _load(config: DrafterConfig) -> Runner:
    from taco_draft.draft_runner import DraftRunner

    return DraftRunner(config)
