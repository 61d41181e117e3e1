"""The Generate stream of one gateway: requests and cancellations in, tokens and model info out."""

import logging
import time
from collections.abc import AsyncIterator

import grpc
from google.protobuf.message import DecodeError

from taco_proto import scheduler_pb2 as pb
from taco_proto.convert import model_info_to_pb, submit_from_pb
from taco_proto.errors import InvalidParameterError
from taco_proto.grammars import GrammarTable
from taco_proto.log_text import MAX_NAME_CHARS, one_line
from taco_proto.requests import GenerateRequest, ModelInfo
from taco_scheduler.server.client_session import ClientSession, SessionClosedError
from taco_scheduler.server.service import SchedulerService
from taco_scheduler.server.stream_protocol import (
    Context,
    StreamError,
    abort,
    check_version,
    first,
    run_stream,
)

logger = logging.getLogger("taco.scheduler")


async def serve_gateway(
    service: SchedulerService, requests: AsyncIterator[pb.GatewayMessage], context: Context
) -> None:
    """Serves a Generate stream until either side ends it; then cancels the gateway's requests."""
    try:
        hello = await first(requests, "hello")
        check_version(hello.hello.protocol_version)
        if service.is_draining:  # another scheduler may soon listen on this address
            raise StreamError(grpc.StatusCode.UNAVAILABLE, "the scheduler is shutting down")
        session = service.connect(one_line(hello.hello.name, MAX_NAME_CHARS) or context.peer())
        await run_stream(
            _read_requests(session, requests),
            _write_outputs(session, context),
            lambda error: session.close(),
        )
    except (StreamError, DecodeError) as error:
        await abort(context, error)


async def _read_requests(
    session: ClientSession, requests: AsyncIterator[pb.GatewayMessage]
) -> None:
    grammars = GrammarTable()
    async for message in requests:
        match message.WhichOneof("body"):
            case "submit":
                _submit(session, message.submit, grammars)
            case "cancel":
                _cancel(session, message.cancel)
            case other:
                raise StreamError(
                    grpc.StatusCode.INVALID_ARGUMENT, f"unexpected message: {other or 'empty'}"
                )


def _submit(session: ClientSession, message: pb.Submit, grammars: GrammarTable) -> None:
    try:
        request = submit_from_pb(message, time.monotonic(), grammars)
    except InvalidParameterError as error:
        session.reject(message.handle, 400, str(error))
    except ValueError as error:
        session.reject(message.handle, 400, f"the request cannot be read: {error}")
    else:
        _submit_or_fail(session, request)


def _submit_or_fail(session: ClientSession, request: GenerateRequest) -> None:
    """A bug in admission fails one request, not the gateway's stream."""
    try:
        session.submit(request)
    except Exception:
        logger.exception("request %s failed in admission", request.request_id)
        session.reject(request.handle, 500, "the scheduler failed to admit the request")


def _cancel(session: ClientSession, message: pb.Cancel) -> None:
    """An unknown handle is no error: the request may have ended before the message arrived."""
    if not message.indexes:
        for handle in message.handles:
            session.cancel(handle)
        return
    if len(message.indexes) != len(message.handles):
        raise StreamError(grpc.StatusCode.INVALID_ARGUMENT, "cancel columns differ in length")
    for handle, index in zip(message.handles, message.indexes, strict=True):
        session.cancel(handle, index)


async def _write_outputs(session: ClientSession, context: Context) -> None:
    while True:
        try:
            message = await session.next_message()
        except SessionClosedError as error:
            raise StreamError(grpc.StatusCode.UNAVAILABLE, str(error)) from None
        if isinstance(message, ModelInfo):
            await context.write(pb.SchedulerMessage(model=model_info_to_pb(message)))
        else:
            await context.write(pb.SchedulerMessage(outputs=message))
