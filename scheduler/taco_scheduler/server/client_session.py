"""One client of the scheduler: a gateway's stream, or the engine in the same process."""

import asyncio
from typing import Protocol

from taco_proto import scheduler_pb2 as pb
from taco_proto.requests import GenerateRequest, ModelInfo
from taco_scheduler.state.output_buffer import OutputBuffer


class SessionClosedError(Exception):
    """The session has ended, and why."""


class SessionHost(Protocol):
    """What a session needs of the service. Nothing of it waits, but for the first worker."""

    async def first_model_info(self) -> ModelInfo: ...

    def submit(self, output_buffer: OutputBuffer, request: GenerateRequest) -> None: ...

    def cancel(self, output_buffer: OutputBuffer, handle: int, index: int | None) -> None: ...

    def disconnect(self, session: "ClientSession") -> None: ...


class ClientSession:
    """Submits requests and takes their news. To be used on the service's event loop."""

    def __init__(
        self, host: SessionHost, output_buffer: OutputBuffer, name: str, model: ModelInfo
    ) -> None:
        self.name = name
        self.output_buffer = output_buffer
        self._host = host
        self._model: ModelInfo | None = model
        self._news = asyncio.Event()
        self._waits = False
        self._close_reason: str | None = None

    async def model_info(self) -> ModelInfo:
        """What is served; waits for the first worker."""
        return await self._host.first_model_info()

    def submit(self, request: GenerateRequest) -> None:
        """Queues a request. Refusals come as errors of a batch."""
        if self._close_reason is None:
            self._host.submit(self.output_buffer, request)

    def cancel(self, handle: int, index: int | None = None) -> None:
        """Ends a request, or one of its sequences; of no effect if it has ended."""
        if self._close_reason is None:
            self._host.cancel(self.output_buffer, handle, index)

    def refuse(self, handle: int, code: int, message: str) -> None:
        """The client's request cannot even be read."""
        self.output_buffer.add_error(handle, code, message)
        self.notify()

    async def next_batch(self) -> pb.OutputBatch:
        """Waits for news; all that has gathered comes at once.

        Raises:
            SessionClosedError: the service stopped, or this client was hopelessly behind.
        """
        while not isinstance(message := await self.next_message(), pb.OutputBatch):
            pass
        return message

    async def next_message(self) -> ModelInfo | pb.OutputBatch:
        """The same, with a `ModelInfo` first and whenever a worker comes or goes, or the
        service begins to shut down.

        Raises:
            SessionClosedError: see `next_batch`.
        """
        while True:
            if self._close_reason is not None:
                raise SessionClosedError(self._close_reason)
            if self._model is not None:
                model, self._model = self._model, None
                return model
            if self.output_buffer:
                return self.output_buffer.take()
            await self._wait_for_news()

    @property
    def has_taken_all(self) -> bool:
        """The client has everything and waits for more."""
        return self._waits and self._model is None and not self.output_buffer

    def close(self, reason: str = "the client closed its session") -> None:
        """Cancels whatever the client still has."""
        if self._close_reason is None:
            self._close_reason = reason
            self._news.set()
            self._host.disconnect(self)

    def notify(self) -> None:
        """The service calls it when the engine may have put something into the output_buffer."""
        if self.output_buffer.overflowed:
            self.close("the client does not take its tokens")
        elif self.output_buffer:
            self._news.set()

    async def _wait_for_news(self) -> None:
        self._news.clear()
        self._waits = True
        try:
            await self._news.wait()
        finally:
            self._waits = False

    def notify_model(self, model: ModelInfo) -> None:
        self._model = model
        self._news.set()
