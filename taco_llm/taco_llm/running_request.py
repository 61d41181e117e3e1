"""One request of `AsyncLLMEngine` while it runs."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress

from taco_gateway.text.output.output_processor import TextUpdate
from taco_llm.outputs import RequestOutput


class RunningRequest:
    """Gathers the news of a request in a task of its own.

    A slow reader finds them merged, and an abort need not wait for the reader to ask again.

    Attributes:
        output: what there is so far; it grows under the reader.
    """

    def __init__(self, output: RequestOutput, updates: AsyncGenerator[TextUpdate, None]) -> None:
        self.output = output
        self._updates = updates
        self._error: Exception | None = None
        self._news = asyncio.Event()
        self._ended = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._gather())

    async def outputs(self) -> AsyncIterator[RequestOutput]:
        """Copies of the output as it grows; the last one is finished. Raises what failed."""
        while True:
            await self._news.wait()
            self._news.clear()
            if self._error is not None:
                raise self._error
            output = self.output.snapshot()
            yield output
            if output.finished:
                return

    async def finished(self) -> RequestOutput:
        """The finished output. Raises what failed."""
        await self._ended.wait()
        if self._error is not None:
            raise self._error
        return self.output

    async def close(self) -> None:
        """Cancels what still runs, upstream too; its sequences end as aborted. Idempotent."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        # A task that was cancelled before its first step has not closed them.
        await self._updates.aclose()
        self.output.abort()
        self._ended.set()
        self._news.set()

    async def _gather(self) -> None:
        try:
            async for update in self._updates:
                self.output.add(update)
                self._news.set()
        except Exception as error:
            self._error = error
        finally:
            self._ended.set()
            self._news.set()
