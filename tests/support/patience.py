"""How long tests wait for what must come: a slow machine needs less, so that a defect is found."""

import asyncio
import time
from collections.abc import Awaitable, Callable

PATIENCE_SECONDS = 180.0


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Polls until `condition()` holds; fails after `PATIENCE_SECONDS`."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await condition():  # noqa: ASYNC110 (nothing tells)
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"{what} did not come about") from None


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """As `until`, where there is no event loop."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come about"
        time.sleep(0.02)
