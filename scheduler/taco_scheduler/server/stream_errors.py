"""What the streams that peers hold open have in common.

Whatever a peer sends that cannot be ends its own stream with a clear status and disturbs nobody
else.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
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

HELLO_SECONDS = 10.0

logger = logging.getLogger("taco.scheduler")

Context = grpc.aio.ServicerContext
Message = TypeVar("Message")


class StreamError(Exception):
    """Why a peer's stream is ended, as a gRPC status."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def attach(call: Callable[[], None]) -> None:
    """Raises StreamError: what `call` attaches is refused."""
    try:
        call()
    except InvalidWorkerError as error:
        raise StreamError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None
    except OtherModelError as error:
        raise StreamError(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from None
    except WorkerRejectedError as error:
        raise StreamError(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)) from None


async def unless_silent(messages: AsyncIterator[Message], seconds: float) -> AsyncIterator[Message]:
    """The messages of a peer that sends heartbeats.

    Raises:
        StreamError: it has been silent for `seconds`.
    """
    watch = _SilenceWatch(seconds)
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


class _SilenceWatch:
    """Cancels the current task once it has waited `seconds` for one message.

    One timer serves many messages: where it finds that a message came meanwhile it is set again for
    the rest. An `asyncio.timeout` for each message would be a tenth of what a message costs.
    """

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._num_cancels_before = task.cancelling()
        self._seconds = seconds
        self._is_silent = False
        self.wait()
        self._timer = self._loop.call_later(seconds, self._check)

    def wait(self) -> None:
        """The task waits for the next message from now on."""
        self.is_waiting = True
        self._since = self._loop.time()

    def has_cancelled(self) -> bool:
        """This watch alone has cancelled the task."""
        return self._is_silent and self._task.uncancel() <= self._num_cancels_before

    def close(self) -> None:
        self._timer.cancel()

    def _check(self) -> None:
        rest = self._since + self._seconds - self._loop.time()
        if self.is_waiting and rest <= 0:
            self._is_silent = True
            self._task.cancel()
        else:
            rest = rest if self.is_waiting else self._seconds
            self._timer = self._loop.call_later(rest, self._check)


async def first(messages: AsyncIterator[Any], body: str) -> Any:
    """The first message, which must be a hello.

    Raises:
        StreamError: it is not, or does not come.
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
    if version != PROTOCOL_VERSION:
        raise StreamError(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"the scheduler speaks protocol version {PROTOCOL_VERSION}, not {version}",
        )


async def run(
    reader: Coroutine[Any, Any, None],
    writer: Coroutine[Any, Any, None],
    close: Callable[[BaseException | None], None],
) -> None:
    """Runs both directions of a stream until one ends, or the peer is gone.

    Args:
        close: told why the stream ends (None: the peer has closed its side), it must make `writer`
            end by itself. A write that was cancelled midway would leave the call unable to send
            its status.

    Raises:
        Exception: what ended the stream.
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
    """Ends a stream with a status; bytes that are no message are the peer's fault, too."""
    if isinstance(error, DecodeError):
        error = StreamError(
            grpc.StatusCode.INVALID_ARGUMENT, "what came is no message of this call"
        )
    logger.warning("%s: %s", context.peer(), error)
    await context.abort(error.code, str(error))
    raise AssertionError("abort raises")
