"""The transports to a draft worker: `LocalDrafterLink` here, `RemoteDrafterLink` over gRPC."""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from taco_proto import scheduler_pb2 as pb
from taco_proto.convert_drafts import draft_request_to_pb
from taco_proto.drafts import DrafterInfo, DraftReply, DraftRequest

logger = logging.getLogger("taco.scheduler")


class DraftExecutor(Protocol):
    """A draft model in this process."""

    @property
    def info(self) -> DrafterInfo: ...

    def draft(self, request: DraftRequest) -> DraftReply: ...


class LocalDrafterLink:
    """Runs a draft model in its own thread.

    Args:
        deliver: called on the running event loop with this link and each reply.
        lost: called there with this link and the reason when the model has failed.
    """

    def __init__(
        self,
        executor: DraftExecutor,
        deliver: Callable[["LocalDrafterLink", DraftReply], None],
        lost: Callable[["LocalDrafterLink", str], None],
    ) -> None:
        """Raises RuntimeError without a running event loop."""
        self.info = executor.info
        self._executor = executor
        self._deliver = deliver
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._requests: queue.SimpleQueue[DraftRequest | None] = queue.SimpleQueue()
        self._ended = asyncio.Event()
        threading.Thread(target=self._run, name=self.info.name, daemon=True).start()

    def send(self, request: DraftRequest) -> None:
        self._requests.put(request)

    def close(self, reason: str = "") -> None:
        if reason:
            logger.error("draft worker %s: %s", self.info.name, reason)
        self._requests.put(None)

    async def join(self) -> None:
        """Waits until the thread has ended; call `close` before."""
        await self._ended.wait()

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            try:
                reply = self._executor.draft(request)
            except Exception as error:  # decoding continues without drafts
                logger.exception("draft worker %s failed", self.info.name)
                self._call(self._lost, self, repr(error))
                break
            self._call(self._deliver, self, reply)
        self._call(self._ended.set)

    def _call(self, callback: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: nothing waits for the drafts
            self._loop.call_soon_threadsafe(callback, *arguments)


class RemoteDrafterLink:
    """A draft worker that dialled in. Requests wait in a queue until its stream writes them.

    Attributes:
        close_reason: why the draft worker cannot be used; empty: it can.
    """

    def __init__(self, info: DrafterInfo) -> None:
        self.info = info
        self.close_reason = ""
        self._requests: asyncio.Queue[pb.DraftRequest | None] = asyncio.Queue()

    def send(self, request: DraftRequest) -> None:
        self._requests.put_nowait(draft_request_to_pb(request))

    def close(self, reason: str = "") -> None:
        self.close_reason = self.close_reason or reason
        self._requests.put_nowait(None)

    async def next_request(self) -> pb.DraftRequest | None:
        """Waits for the next request; None once the link was closed."""
        return await self._requests.get()
