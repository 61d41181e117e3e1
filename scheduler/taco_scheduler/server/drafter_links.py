"""The links to a draft worker: in this process, or over its AttachDrafter stream."""

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


class LocalDrafter:
    """Runs a draft model in a thread of its own.

    Args:
        deliver: called on the running event loop with this link and each reply.
        lost: called there with this link and the reason when the model has failed.
    """

    def __init__(
        self,
        executor: DraftExecutor,
        deliver: Callable[["LocalDrafter", DraftReply], None],
        lost: Callable[["LocalDrafter", str], None],
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
        """Waits until the thread has ended, which it does after `close`."""
        await self._ended.wait()

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            try:
                reply = self._executor.draft(request)
            except Exception as error:  # decoding goes on without drafts
                logger.exception("draft worker %s failed", self.info.name)
                self._call(self._lost, self, repr(error))
                break
            self._call(self._deliver, self, reply)
        self._call(self._ended.set)

    def _call(self, callback: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits for news any more
            self._loop.call_soon_threadsafe(callback, *arguments)


class RemoteDrafter:
    """A draft worker that dialled in: requests wait in a queue until its stream has taken them.

    Attributes:
        close_reason: why it cannot be used, if it cannot.
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
        """The next request; None once the link was closed."""
        return await self._requests.get()
