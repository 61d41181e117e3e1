"""An event loop in a background thread, for synchronous callers such as `LLM`.

A separate thread also works in notebooks, whose cells already run inside an event loop.
"""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for other threads until `stop` or the end of the program.

    Args:
        name: the name of the thread.
        on_stop: called and awaited in the loop before it ends.
    """

    def __init__(self, name: str, on_stop: Callable[[], Awaitable[None]]) -> None:
        self._on_stop = on_stop
        self._process = os.getpid()
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._stopping: asyncio.Event
        self._thread = threading.Thread(target=asyncio.run, args=(self._main(),), name=name)
        self._thread.daemon = True
        self._thread.start()
        self._started.wait()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs `coroutine` and returns its result. An interrupt of the caller cancels it.

        Raises:
            RuntimeError: the loop has been stopped, or this process is a fork of the one that made
                the loop.
        """
        if os.getpid() != self._process:  # a fork has no copy of the thread
            coroutine.close()
            raise RuntimeError(
                f"the engine belongs to process {self._process}, of which this process is a fork: "
                "make a new LLM in this process"
            )
        if not self._thread.is_alive():
            coroutine.close()
            raise RuntimeError("the engine has been closed")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Stops the loop and waits for its end. Idempotent."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            # The garbage collector may call this from the loop's thread.
            if self._thread is not threading.current_thread():
                self._thread.join()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._started.set()
        await self._stopping.wait()
        await self._on_stop()
