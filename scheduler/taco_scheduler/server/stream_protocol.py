"""The part of the protocol that all streams share: hello, version, status.

A peer that violates the protocol gets a clear gRPC status and loses its own stream only.
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


def attach(attach_to_engine: Callable[[], None]) -> None:
    """Attaches a worker or draft worker.

    Raises:
        StreamError: the worker was rejected.
    """
    try:
        attach_to_engine()
    except InvalidWorkerError as error:
        raise StreamError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None
    except OtherModelError as error:
        raise StreamError(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from None
    except WorkerRejectedError as error:
        raise StreamError(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)) from None


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


async def read_stream(
    messages: AsyncIterator[Message], take: Callable[[Message], None], peer: str
) -> None:
    """Takes each message of a worker or draft worker.

    Raises:
        StreamError: raised by `take`; INTERNAL: `take` failed by a bug, which is logged. The peer
            may dial again after INTERNAL.
    """
    async for message in messages:
        try:
            take(message)
        except StreamError:
            raise
        except Exception:
            logger.exception("a message of %s failed", peer)
            text = "the scheduler failed to take a message"
            raise StreamError(grpc.StatusCode.INTERNAL, text) from None


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
