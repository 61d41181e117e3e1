"""Reconnects a model's process to its scheduler, with back-off and jitter."""

import asyncio
import logging
import random
import time
from collections.abc import Callable

from taco_worker.model_service import Link, ModelService

_FIRST_BACKOFF_SECONDS = 0.1
_MAX_BACKOFF_SECONDS = 5.0
# Shorter outages of the scheduler are not logged.
_QUIET_SECONDS = 1.0


async def stay_connected(
    address: str, connect: Callable[[], Link], service: ModelService, logger: logging.Logger
) -> int:
    """Stay connected to the scheduler: dial again with a growing back-off when a link ends.

    Returns:
        The exit code: 1 once a link reports a failure that a new link cannot repair.
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
        # Do not warn about a scheduler that stops with this process or is still starting.
        if reason != reported and ended - lost_at >= _QUIET_SECONDS:
            reported = reason
            logger.warning(
                "not connected to the scheduler at %s (%s); reconnecting", address, reason
            )
        # Jitter: the workers of a restarting scheduler must not dial in step.
        await _wait(stop, backoff * random.uniform(0.5, 1.0))
        backoff = min(2 * backoff, _MAX_BACKOFF_SECONDS)
    logger.info("stopped")
    return 0


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return
