"""The part of the protocol that all streams share: hello, version, heartbeat timeout, status.

A peer that violates the protocol gets a clear gRPC status and loses its own stream only.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from taco_proto.config import PROTOCOL_VERSION
from taco_scheduler.admission.validation import (
    InvalidWorkerError,
    OtherModelError,
    WorkerRejectedError,
)

# Seconds that a peer has to send its hello.
HELLO_SECONDS = 10.0

logger = logging.getLogger("taco.scheduler")

Context = grpc.aio.ServicerContext
Message = TypeVar("Message")


class StreamError(Exception):
    """Ends a peer's stream with a gRPC status."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


async def attach(attaching: Awaitable[None], leave: Callable[[BaseException | None], None]) -> None:
    """Waits until the engine's thread has attached a worker or draft worker.

    Args:
        leave: detaches it again; called if the peer disconnects meanwhile.

    Raises:
        StreamError: the worker was rejected.
    """
    try:
        await attaching
    except asyncio.CancelledError as gone:
        leave(gone)
        raise
    except InvalidWorkerError as error:
        raise StreamError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None
    except OtherModelError as error:
        raise StreamError(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from None
    except WorkerRejectedError as error:
        raise StreamError(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)) from None


async def until_silent(messages: AsyncIterator[Message], seconds: float) -> AsyncIterator[Message]:
    """Yields the messages of a peer that sends heartbeats.

    Raises:
        StreamError: heartbeat timeout: no message arrived for `seconds`.
    """
    watch = _HeartbeatTimeout(seconds)
    try:
        async for message in messages:
            watch.is_waiting = False
            yield message
            watch.wait()
    except asyncio.CancelledError:
        if not watch.has_cancelled():
            raise
        raise StreamError(grpc.StatusCode.DEADLINE_EXCEEDED, f"silent for {seconds:g} s") from None
    finally:
        watch.close()


class _HeartbeatTimeout:
    """Cancels the current task once it has waited `seconds` for one message.

    One timer serves many messages: if a message arrived before the timer fires, the timer is set
    again for the remaining time. An `asyncio.timeout` for each message would cost a tenth of the
    message's processing time.
    """

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._num_cancels_before = task.cancelling()
        self._seconds = seconds
        self._has_expired = False
        self.wait()
        self._timer = self._loop.call_later(seconds, self._check)

    def wait(self) -> None:
        """Starts the wait for the next message."""
        self.is_waiting = True
        self._since = self._loop.time()

    def has_cancelled(self) -> bool:
        """Whether the task was cancelled by this timeout alone."""
        return self._has_expired and self._task.uncancel() <= self._num_cancels_before

    def close(self) -> None:
        self._timer.cancel()

    def _check(self) -> None:
        rest = self._since + self._seconds - self._loop.time()
        if self.is_waiting and rest <= 0:
            self._has_expired = True
            self._task.cancel()
        else:
            rest = rest if self.is_waiting else self._seconds
            self._timer = self._loop.call_later(rest, self._check)


async def first(messages: AsyncIterator[Any], body: str) -> Any:
    """Returns the first message, which must be a hello.

    Raises:
        StreamError: another message arrived, or none within `HELLO_SECONDS`.
    """
    try:
        async with asyncio.timeout(HELLO_SECONDS):
            message = await anext(messages)
    except (TimeoutError, StopAsyncIteration):
        raise StreamError(grpc.StatusCode.INVALID_ARGUMENT, f"no {body} came") from None
    if message.WhichOneof("body") != body:
        raise StreamError(grpc.StatusCode.INVALID_ARGUMENT, f"the first message must be a {body}")
    return message


def check_version(version: int) -> None:
    """Raises StreamError: the peer speaks another version of the protocol."""
    if version != PROTOCOL_VERSION:
        raise StreamError(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"the scheduler speaks protocol version {PROTOCOL_VERSION}, not {version}",
        )


async def run_stream(
    reader: Coroutine[Any, Any, None],
    writer: Coroutine[Any, Any, None],
    close: Callable[[BaseException | None], None],
) -> None:
    """Runs both directions of a stream until one ends or the peer disconnects.

    Args:
        close: called once with the error that ended the stream; None: the peer closed its side. It
            must make `writer` end by itself: a write that is cancelled midway would leave the call
            unable to send its status.

    Raises:
        Exception: the error that ended the stream.
    """
    reading, writing = asyncio.create_task(reader), asyncio.create_task(writer)
    tasks = (reading, writing)
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        error = next((error for task in done if (error := task.exception())), None)
        close(error)
        reading.cancel()
        await asyncio.wait(tasks)
    except asyncio.CancelledError as gone:
        close(gone)
        raise
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if error is not None:
        raise error


async def abort(context: Context, error: StreamError | DecodeError) -> NoReturn:
    """Ends a stream with a status; bytes that cannot be decoded are INVALID_ARGUMENT."""
    if isinstance(error, DecodeError):
        error = StreamError(
            grpc.StatusCode.INVALID_ARGUMENT, "what came is no message of this call"
        )
    logger.warning("%s: %s", context.peer(), error)
    await context.abort(error.code, str(error))
    raise AssertionError("abort raises")
