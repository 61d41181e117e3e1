"""A gRPC stream from a model's process to the scheduler: hello, heartbeats, jobs and answers."""

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import ClassVar, Generic, TypeVar

import grpc
import grpc.aio

from taco_common.grpc_tls import open_channel
from taco_common.tls import Role
from taco_proto.config import MAX_MESSAGE_BYTES, TlsConfig
from taco_proto.errors import ConfigurationError
from taco_proto.scheduler_pb2_grpc import SchedulerStub
from taco_worker.model_thread import ModelThread

logger = logging.getLogger("taco.worker")

Up = TypeVar("Up")
Down = TypeVar("Down")

HEARTBEAT_SECONDS = 2.0
_CLOSE_TIMEOUT_SECONDS = 2.0
_DRAIN_TIMEOUT_SECONDS = 3600.0  # the scheduler enforces its own drain timeout
_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # gRPC keepalive detects a peer that vanished without closing within 15 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # gRPC sends no keepalive while another ping waits
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)


class StreamLink(ABC, Generic[Up, Down]):
    """One stream, from hello to its end; each reconnect makes a new link.

    Attributes:
        is_used: whether a job has arrived.
        is_attached: whether the scheduler has accepted the process.
        was_attached: whether the scheduler ever accepted it over this link.
        failure: after the stream has ended, why the process must exit; empty otherwise.
        final_codes: status codes with which the scheduler rejects the process for good.
    """

    final_codes: ClassVar[tuple[grpc.StatusCode, ...]] = ()

    def __init__(self, address: str, thread: ModelThread, tls: TlsConfig | None = None) -> None:
        self.is_used = False
        self.is_attached = False
        self.was_attached = False
        self.failure = ""
        self._address = address
        # Unix sockets use file permissions, not TLS; a worker may have TLS for its license server.
        self._tls = None if address.startswith("unix:") else tls
        self._thread = thread
        self._loop = asyncio.get_running_loop()
        self._send_queue: asyncio.Queue[Up | None] = asyncio.Queue()
        self._jobs: set[Future[None]] = set()
        self._is_stopping = False

    @abstractmethod
    def _open(self, stub: SchedulerStub) -> grpc.aio.StreamStreamCall: ...

    @abstractmethod
    def _hello(self) -> Up: ...

    @abstractmethod
    def _heartbeat(self) -> Up: ...

    @abstractmethod
    def _job(self, message: Down) -> Callable[[], None] | None:
        """The job that a message gives to the model's thread; None if it gives none.

        Raises:
            ValueError, OverflowError: the message is invalid.
        """

    @abstractmethod
    def _reset(self) -> None:
        """Forget the state of an earlier link; runs in the model's thread."""

    def _leave_message(self) -> Up | None:
        """The message that asks the scheduler to drain this process; None: no drain is needed."""
        return None

    def _drain(self) -> None:
        """Return once all answers have been queued for sending; runs in the model's thread."""
        return

    def _send_answer(self, message: Up, failure: str = "") -> None:
        """Send an answer; with a `failure` it is the last message. Thread safe."""
        self.failure = failure
        self._send(message)
        if failure:
            self._send(None)

    def _send(self, message: Up | None) -> None:
        """Queue a message for sending; None ends the stream. Thread safe."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the service has ended
            self._loop.call_soon_threadsafe(self._send_queue.put_nowait, message)

    async def run(self, stop: asyncio.Event) -> str:
        """Serve until `stop` is set or the stream ends; return the reason why it ended.

        On `stop` the link asks the scheduler to drain this process, if it needs that. It then
        finishes the current job and sends the answer. On cancellation it closes the stream at
        once, but in order.
        """
        await asyncio.wrap_future(self._thread.submit(self._reset))
        self._send_queue.put_nowait(self._hello())
        try:
            dialled = open_channel(self._address, _CHANNEL_OPTIONS, self._tls, Role.SCHEDULER)
        except ConfigurationError as error:
            return str(error)
        async with dialled as channel:
            stream = self._open(SchedulerStub(channel))
            reader = asyncio.create_task(self._read(stream))
            writer = asyncio.create_task(self._write(stream))
            heart = asyncio.create_task(self._send_heartbeats())
            taken = asyncio.create_task(self._watch_attached(stream))
            stopped = asyncio.create_task(stop.wait())
            try:
                await asyncio.wait(
                    {reader, writer, heart, stopped}, return_when=asyncio.FIRST_COMPLETED
                )
                if heart.done():  # without heartbeats the scheduler declares the process lost
                    return f"sending heartbeats failed: {heart.exception()}"
                if stopped.done():
                    await self._request_drain(reader, writer)
                    await self._finish_current_job(reader, writer)
                elif writer.done():
                    # Cancelling the stream now might lose the last answer.
                    await asyncio.wait({reader}, timeout=_CLOSE_TIMEOUT_SECONDS)
                return await self._end_reason(stream, reader)
            except asyncio.CancelledError:
                await self._close_stream(reader, writer)
                raise
            finally:
                self._cancel_waiting_jobs()
                await _cancel((reader, writer, heart, taken, stopped))
                self.is_attached = False
                stream.cancel()

    async def _watch_attached(self, stream: grpc.aio.StreamStreamCall) -> None:
        """Note the initial metadata, which the scheduler sends once it has accepted the process."""
        await stream.initial_metadata()
        if not stream.done():  # a failed call has metadata, too
            self.is_attached = self.was_attached = True

    async def _read(self, stream: grpc.aio.StreamStreamCall) -> None:
        async for message in stream:
            job = self._job(message)
            if job is not None and not self._is_stopping:
                self.is_used = True
                future = self._thread.submit(job)
                self._jobs.add(future)
                future.add_done_callback(self._note_end)

    def _note_end(self, job: Future[None]) -> None:
        """Runs in the model's thread, or in the loop's if the job was cancelled."""
        self._jobs.discard(job)
        if not job.cancelled() and (error := job.exception()) is not None:
            logger.error("a message of the scheduler could not be carried out", exc_info=error)

    async def _write(self, stream: grpc.aio.StreamStreamCall) -> None:
        while (message := await self._send_queue.get()) is not None:
            await stream.write(message)
        await stream.done_writing()

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            self._send_queue.put_nowait(self._heartbeat())

    async def _request_drain(self, reader: asyncio.Task[None], writer: asyncio.Task[None]) -> None:
        """Ask for a drain and serve on until the scheduler ends the stream."""
        message = self._leave_message()
        if message is not None:
            self._send_queue.put_nowait(message)
            await asyncio.wait(
                {reader, writer},
                timeout=_DRAIN_TIMEOUT_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )

    async def _finish_current_job(
        self, reader: asyncio.Task[None], writer: asyncio.Task[None]
    ) -> None:
        """Finish the current job. The reader keeps running: cancelling a read ends the stream."""
        self._is_stopping = True
        self._cancel_waiting_jobs()
        # The drain is queued after the current job; its answer is then in the send queue.
        await asyncio.wrap_future(self._thread.submit(self._drain))
        await self._close_stream(reader, writer)

    async def _close_stream(self, reader: asyncio.Task[None], writer: asyncio.Task[None]) -> None:
        """Half-close the stream in order, so that the scheduler counts no worker loss."""
        self._is_stopping = True
        self._send_queue.put_nowait(None)
        await asyncio.wait({reader, writer}, timeout=_CLOSE_TIMEOUT_SECONDS)

    def _cancel_waiting_jobs(self) -> None:
        for job in tuple(self._jobs):
            job.cancel()

    async def _end_reason(
        self, stream: grpc.aio.StreamStreamCall, reader: asyncio.Task[None]
    ) -> str:
        error = reader.exception() if reader.done() and not reader.cancelled() else None
        if error is not None and not isinstance(error, grpc.aio.AioRpcError):
            return f"a message from the scheduler is invalid: {error}"
        if stream.done() or not self._is_stopping:
            # The end of the stream may be known before its status.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_TIMEOUT_SECONDS):
                    code, details = await stream.code(), await stream.details()
                if code in self.final_codes:
                    self.failure = f"the scheduler at {self._address} rejects it: {details}"
                if code != grpc.StatusCode.OK:
                    return f"{code.name}: {details}"
        return "the stream was closed"


async def _cancel(tasks: Iterable[asyncio.Task[object]]) -> None:
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task
