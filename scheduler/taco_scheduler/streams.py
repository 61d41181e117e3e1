"""The streams that peers hold open: one a gateway, one a worker.

Whatever a peer sends that cannot be ends its own stream with a clear status and disturbs nobody
else.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, NoReturn

import grpc
import grpc.aio

from taco_proto import scheduler_pb2 as pb
from taco_proto.config import PROTOCOL_VERSION
from taco_proto.convert import (
    model_info_to_pb,
    output_batch_to_pb,
    step_output_from_pb,
    submit_from_pb,
    worker_info_from_pb,
)
from taco_proto.errors import InvalidParameterError
from taco_proto.requests import ModelInfo
from taco_proto.steps import StepOutput
from taco_scheduler.admission import InvalidWorkerError
from taco_scheduler.replica import RemoteReplica
from taco_scheduler.service import SchedulerService, WorkerRefusedError
from taco_scheduler.session import ClientSession, SessionClosedError

HELLO_SECONDS = 10.0
GOODBYE_SECONDS = 0.1
WORKER_SILENCE_SECONDS = 10.0  # workers send a heartbeat every 2 s

logger = logging.getLogger("taco.scheduler")

Context = grpc.aio.ServicerContext


class PeerError(Exception):
    """Why a peer's stream is ended, as a gRPC status."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


# ---------------------------------------------------------------- gateways


async def serve_gateway(
    service: SchedulerService, requests: AsyncIterator[pb.GatewayMessage], context: Context
) -> None:
    """Runs a Generate stream until either side ends it; what the gateway still had is cancelled."""
    try:
        hello = await _first(requests, "hello")
        _check_version(hello.hello.protocol_version)
        session = service.connect(hello.hello.name or context.peer())
        await _run(
            _read_gateway(session, requests),
            _write_gateway(session, context),
            lambda error: session.close(),
        )
    except PeerError as error:
        await _abort(context, error)


async def _read_gateway(session: ClientSession, requests: AsyncIterator[pb.GatewayMessage]) -> None:
    async for message in requests:
        match message.WhichOneof("body"):
            case "submit":
                _submit(session, message.submit)
            case "cancel":
                _cancel(session, message.cancel)
            case other:
                raise PeerError(
                    grpc.StatusCode.INVALID_ARGUMENT, f"unexpected message: {other or 'empty'}"
                )


def _submit(session: ClientSession, message: pb.Submit) -> None:
    try:
        request = submit_from_pb(message)
    except InvalidParameterError as error:
        session.refuse(message.handle, 400, str(error))
    except ValueError:
        session.refuse(message.handle, 400, "sampling columns differ in length")
    else:
        session.submit(request)


def _cancel(session: ClientSession, message: pb.Cancel) -> None:
    """A handle that names nothing is no error: its request may have ended on the way."""
    if not message.indexes:
        for handle in message.handles:
            session.cancel(handle)
        return
    if len(message.indexes) != len(message.handles):
        raise PeerError(grpc.StatusCode.INVALID_ARGUMENT, "cancel columns differ in length")
    for handle, index in zip(message.handles, message.indexes, strict=True):
        session.cancel(handle, index)


async def _write_gateway(session: ClientSession, context: Context) -> None:
    while True:
        try:
            news = await session.next_message()
        except SessionClosedError as error:
            raise PeerError(grpc.StatusCode.UNAVAILABLE, str(error)) from None
        if isinstance(news, ModelInfo):
            await context.write(pb.SchedulerMessage(model=model_info_to_pb(news)))
        else:
            await context.write(pb.SchedulerMessage(outputs=output_batch_to_pb(news)))


# ----------------------------------------------------------------- workers


async def serve_worker(
    service: SchedulerService, messages: AsyncIterator[pb.WorkerMessage], context: Context
) -> None:
    """Runs an Attach stream until either side ends it; its sequences then wait for a worker."""
    try:
        hello = await _first(messages, "hello")
        _check_version(hello.hello.protocol_version)
        replica = RemoteReplica(worker_info_from_pb(hello.hello))
        _attach(service, replica)

        def leave(error: BaseException | None) -> None:
            reason = "it left" if error is None else str(error) or "the link broke"
            service.lose(replica, reason, is_fault=error is not None)

        await _run(_read_worker(service, replica, messages), _write_worker(replica, context), leave)
    except PeerError as error:
        await _abort(context, error)


def _attach(service: SchedulerService, replica: RemoteReplica) -> None:
    try:
        service.attach(replica)
    except InvalidWorkerError as error:
        raise PeerError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None
    except WorkerRefusedError as error:
        raise PeerError(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)) from None


async def _read_worker(
    service: SchedulerService, replica: RemoteReplica, messages: AsyncIterator[pb.WorkerMessage]
) -> None:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(WORKER_SILENCE_SECONDS) as silence:
            async for message in messages:
                silence.reschedule(loop.time() + WORKER_SILENCE_SECONDS)
                match message.WhichOneof("body"):
                    case "output":
                        service.deliver(replica, _read_output(message.output))
                    case "heartbeat":
                        pass
                    case other:
                        raise PeerError(
                            grpc.StatusCode.INVALID_ARGUMENT,
                            f"unexpected message: {other or 'empty'}",
                        )
    except TimeoutError:
        raise PeerError(
            grpc.StatusCode.DEADLINE_EXCEEDED, f"silent for {WORKER_SILENCE_SECONDS:g} s"
        ) from None
    # A worker that died looks the same for a moment, until its call counts as cancelled.
    await asyncio.sleep(GOODBYE_SECONDS)


def _read_output(message: pb.StepOutput) -> StepOutput:
    try:
        return step_output_from_pb(message)
    except (ValueError, OverflowError) as error:  # slots and tokens are signed 32-bit integers
        raise PeerError(grpc.StatusCode.INVALID_ARGUMENT, f"invalid output: {error}") from None


async def _write_worker(replica: RemoteReplica, context: Context) -> None:
    while (command := await replica.next_command()) is not None:
        await context.write(command)
    if replica.close_reason:
        raise PeerError(grpc.StatusCode.INVALID_ARGUMENT, replica.close_reason)


# -------------------------------------------------------------------- both


async def _first(messages: AsyncIterator[Any], body: str) -> Any:
    """The first message, which must be a hello.

    Raises:
        PeerError: it is not, or does not come.
    """
    try:
        async with asyncio.timeout(HELLO_SECONDS):
            message = await anext(messages)
    except (TimeoutError, StopAsyncIteration):
        raise PeerError(grpc.StatusCode.INVALID_ARGUMENT, f"no {body} came") from None
    if message.WhichOneof("body") != body:
        raise PeerError(grpc.StatusCode.INVALID_ARGUMENT, f"the first message must be a {body}")
    return message


def _check_version(version: int) -> None:
    if version != PROTOCOL_VERSION:
        raise PeerError(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"the scheduler speaks protocol version {PROTOCOL_VERSION}, not {version}",
        )


async def _run(
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


async def _abort(context: Context, error: PeerError) -> NoReturn:
    logger.warning("%s: %s", context.peer(), error)
    await context.abort(error.code, str(error))
    raise AssertionError("abort raises")
