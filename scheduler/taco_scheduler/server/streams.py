"""The streams of gateways and workers."""

import asyncio
import time
from collections.abc import AsyncIterator

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from taco_proto import scheduler_pb2 as pb
from taco_proto.convert import (
    model_info_to_pb,
    step_output_from_pb,
    submit_from_pb,
    worker_info_from_pb,
    worker_license_from_pb,
)
from taco_proto.convert_kv_tiers import store_report_from_pb
from taco_proto.errors import InvalidParameterError
from taco_proto.kv_tiers import StoreReport
from taco_proto.log_text import MAX_NAME_CHARS, one_line
from taco_proto.requests import ModelInfo
from taco_proto.steps import StepOutput
from taco_scheduler.server.client_session import ClientSession, SessionClosedError
from taco_scheduler.server.service import SchedulerService, StalledError
from taco_scheduler.server.stream_errors import (
    Context,
    StreamError,
    abort,
    attach,
    check_version,
    first,
    run,
    unless_silent,
)
from taco_scheduler.server.worker_links import RemoteWorkerLink
from taco_scheduler.state.in_flight import StaleOutputError

GOODBYE_SECONDS = 0.1

# ---------------------------------------------------------------- gateways


async def serve_gateway(
    service: SchedulerService, requests: AsyncIterator[pb.GatewayMessage], context: Context
) -> None:
    """Runs a Generate stream until either side ends it; what the gateway still had is cancelled."""
    try:
        hello = await first(requests, "hello")
        check_version(hello.hello.protocol_version)
        if service.is_draining:  # another one may listen at this address already, or soon
            raise StreamError(grpc.StatusCode.UNAVAILABLE, "the scheduler is shutting down")
        session = service.connect(one_line(hello.hello.name, MAX_NAME_CHARS) or context.peer())
        await run(
            _read_gateway(session, requests),
            _write_gateway(session, context),
            lambda error: session.close(),
        )
    except (StreamError, DecodeError) as error:
        await abort(context, error)


async def _read_gateway(session: ClientSession, requests: AsyncIterator[pb.GatewayMessage]) -> None:
    async for message in requests:
        match message.WhichOneof("body"):
            case "submit":
                _submit(session, message.submit)
            case "cancel":
                _cancel(session, message.cancel)
            case other:
                raise StreamError(
                    grpc.StatusCode.INVALID_ARGUMENT, f"unexpected message: {other or 'empty'}"
                )


def _submit(session: ClientSession, message: pb.Submit) -> None:
    try:
        request = submit_from_pb(message, time.monotonic())
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
        raise StreamError(grpc.StatusCode.INVALID_ARGUMENT, "cancel columns differ in length")
    for handle, index in zip(message.handles, message.indexes, strict=True):
        session.cancel(handle, index)


async def _write_gateway(session: ClientSession, context: Context) -> None:
    while True:
        try:
            new = await session.next_message()
        except SessionClosedError as error:
            raise StreamError(grpc.StatusCode.UNAVAILABLE, str(error)) from None
        if isinstance(new, ModelInfo):
            await context.write(pb.SchedulerMessage(model=model_info_to_pb(new)))
        else:
            await context.write(pb.SchedulerMessage(outputs=new))


# ----------------------------------------------------------------- workers


async def serve_worker(
    service: SchedulerService, messages: AsyncIterator[pb.WorkerMessage], context: Context
) -> None:
    """Runs an Attach stream until either side ends it; its sequences then go on elsewhere."""
    try:
        hello = await first(messages, "hello")
        check_version(hello.hello.protocol_version)
        replica = RemoteWorkerLink(worker_info_from_pb(hello.hello))
        attach(lambda: service.attach(replica))

        def leave(error: BaseException | None) -> None:
            reason = "it left" if error is None else str(error) or "the link broke"
            service.lose(replica, reason, is_fault=error is not None)

        await run(_read_worker(service, replica, messages), _write_worker(replica, context), leave)
    except (StreamError, DecodeError) as error:
        await abort(context, error)


async def _read_worker(
    service: SchedulerService, replica: RemoteWorkerLink, messages: AsyncIterator[pb.WorkerMessage]
) -> None:
    async for message in unless_silent(messages, service.config.worker_timeout):
        match message.WhichOneof("body"):
            case "output":
                service.deliver(replica, _read_output(message.output))
            case "heartbeat":
                service.note_license(replica, worker_license_from_pb(message.heartbeat))
            case "store_report":
                service.deliver_store_report(replica, _read_report(message.store_report))
            case "announced":
                service.note_begun(replica, message.announced.epoch, message.announced.step_id)
                replica.let_begin()
            case "leaving":
                service.let_leave(replica)
            case other:
                raise StreamError(
                    grpc.StatusCode.INVALID_ARGUMENT, f"unexpected message: {other or 'empty'}"
                )
    # A worker that died looks the same for a moment, until its call counts as cancelled.
    await asyncio.sleep(GOODBYE_SECONDS)


def _read_output(message: pb.StepOutput) -> StepOutput:
    try:
        return step_output_from_pb(message)
    except (ValueError, OverflowError) as error:  # slots and tokens are signed 32-bit integers
        raise StreamError(grpc.StatusCode.INVALID_ARGUMENT, f"invalid output: {error}") from None


def _read_report(message: pb.StoreReport) -> StoreReport:
    try:
        return store_report_from_pb(message)
    except ValueError as error:
        raise StreamError(grpc.StatusCode.INVALID_ARGUMENT, f"invalid report: {error}") from None


async def _write_worker(replica: RemoteWorkerLink, context: Context) -> None:
    await context.send_initial_metadata(())  # by which the worker knows that it was taken in
    while (command := await replica.next_command()) is not None:
        await context.write(command)
    if replica.error is not None:
        raise StreamError(_code_of(replica.error), str(replica.error))


def _code_of(error: Exception) -> grpc.StatusCode:
    match error:
        case StaleOutputError():
            return grpc.StatusCode.ABORTED
        case StalledError():
            return grpc.StatusCode.DEADLINE_EXCEEDED
    return grpc.StatusCode.INVALID_ARGUMENT
