"""The draft worker as a service."""

import asyncio
import logging
from collections.abc import Awaitable

from taco_draft.drafter_link import DrafterLink, Runner
from taco_proto.config import DrafterConfig
from taco_worker.model_service import run_model_service, stay_attached
from taco_worker.model_thread import ModelThread

logger = logging.getLogger("taco.draft-worker")


def run_draft_worker(config: DrafterConfig) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code. Call it from the main thread.

    A scheduler that is not there, or goes away, is dialled again with growing delays; one that
    refuses the draft worker, for its protocol or its vocabulary, is not.
    """

    def serve(runner: Runner, thread: ModelThread, stop: asyncio.Event) -> Awaitable[int]:
        address = config.scheduler
        return stay_attached(address, lambda: DrafterLink(address, runner, thread), stop, logger)

    return run_model_service("draft-worker", lambda: _load(config), serve)


def _load(config: DrafterConfig) -> Runner:
    from taco_draft.draft_runner import DraftRunner

    return DraftRunner(config)
