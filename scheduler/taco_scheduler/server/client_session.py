"""The session of one client of the scheduler: a gateway's stream, or the engine's own process."""

import asyncio
from typing import Protocol

from taco_proto import scheduler_pb2 as pb
from taco_proto.requests import GenerateRequest, ModelInfo
from taco_scheduler.state.output_buffer import OutputBuffer


class SessionClosedError(Exception):
    """The session has ended; the message says why."""


class SessionHost(Protocol):
    """The methods of the service that a session calls. Only `first_model_info` waits."""

    async def first_model_info(self) -> ModelInfo: ...

    def submit(self, output_buffer: OutputBuffer, request: GenerateRequest) -> None: ...

    def cancel(self, output_buffer: OutputBuffer, handle: int, index: int | None) -> None: ...

    def disconnect(self, session: "ClientSession") -> None: ...


class ClientSession:
    """Submits requests and receives their outputs, on the service's event loop."""

    def __init__(
        self, host: SessionHost, output_buffer: OutputBuffer, name: str, model: ModelInfo
    ) -> None:
        self.name = name
        self.output_buffer = output_buffer
        self._host = host
        self._model: ModelInfo | None = model  # None: it was sent
        self._readable = asyncio.Event()
        self._is_waiting = False
        self._close_reason: str | None = None

    async def model_info(self) -> ModelInfo:
        """The served model; waits for the first worker."""
        return await self._host.first_model_info()

    def submit(self, request: GenerateRequest) -> None:
        """Queues a request. A rejection arrives as an error of a batch."""
        if self._close_reason is None:
            self._host.submit(self.output_buffer, request)

    def cancel(self, handle: int, index: int | None = None) -> None:
        """Cancels a request, or one of its sequences; no effect if it has ended."""
        if self._close_reason is None:
            self._host.cancel(self.output_buffer, handle, index)

    def reject(self, handle: int, code: int, message: str) -> None:
        """Fails a request whose message cannot be read."""
        self.output_buffer.add_error(handle, code, message)
        self.notify()

    async def next_batch(self) -> pb.OutputBatch:
        """Waits for outputs; returns everything buffered in one batch.

        Raises:
            SessionClosedError: the service stopped, or the client fell too far behind.
        """
        while not isinstance(message := await self.next_message(), pb.OutputBatch):
            pass
        return message

    async def next_message(self) -> ModelInfo | pb.OutputBatch:
        """Waits for outputs or a change of the model info.

        The first message is a `ModelInfo`; another follows whenever a worker attaches or detaches,
        or the service begins to drain.

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
            self._readable.clear()
            self._is_waiting = True
            try:
                await self._readable.wait()
            finally:
                self._is_waiting = False

    @property
    def is_drained(self) -> bool:
        """The client has received everything and waits for more."""
        return self._is_waiting and self._model is None and not self.output_buffer

    def close(self, reason: str = "the client closed its session") -> None:
        """Ends the session and cancels the client's requests."""
        if self._close_reason is None:
            self._close_reason = reason
            self._readable.set()
            self._host.disconnect(self)

    def notify(self) -> None:
        """Wakes the reader if there are outputs; the service calls it after each turn."""
        if self.output_buffer.overflowed:
            self.close("the client does not take its tokens")
        elif self.output_buffer:
            self._readable.set()

    def notify_model(self, model: ModelInfo) -> None:
        """Sends a new model info."""
        self._model = model
        self._readable.set()
