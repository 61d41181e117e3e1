"""A running request of `AsyncLLMEngine`: collects its output and wakes its reader."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress

from taco_gateway.text.output.output_processor import TextUpdate
from taco_llm.outputs import RequestOutput


class RunningRequest:
    """Collects the output of a request in a background task.

    A slow reader gets several updates merged. An abort does not wait for the reader.

    Attributes:
        output: the output so far; the task extends it.
    """

    def __init__(self, output: RequestOutput, updates: AsyncGenerator[TextUpdate, None]) -> None:
        self.output = output
        self._updates = updates
        self._error: Exception | None = None
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._collect())

    async def outputs(self) -> AsyncIterator[RequestOutput]:
        """Yields copies of the growing output; the last one is finished.

        Raises:
            Exception: the error of the request, if it failed.
        """
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._error is not None:
                raise self._error
            output = self.output.snapshot()
            yield output
            if output.finished:
                return

    async def finished(self) -> RequestOutput:
        """Waits for the finished output.

        Raises:
            Exception: the error of the request, if it failed.
        """
        await self._ended.wait()
        if self._error is not None:
            raise self._error
        return self.output

    async def close(self) -> None:
        """Cancels the request in the engine and marks its sequences as aborted. Idempotent."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        # A task that was cancelled before its first step has not closed the updates.
        await self._updates.aclose()
        self.output.abort()
        self._ended.set()
        self._changed.set()

    async def _collect(self) -> None:
        try:
            async for update in self._updates:
                self.output.add(update)
                self._changed.set()
        except Exception as error:
            self._error = error
        finally:
            self._ended.set()
            self._changed.set()
