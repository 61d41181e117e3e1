"""The AttachDrafter stream of one draft worker: drafts in, requests for drafts out."""

import logging
from collections.abc import AsyncIterator

import grpc
from google.protobuf.message import DecodeError

from taco_proto import scheduler_pb2 as pb
from taco_proto.convert_drafts import draft_reply_from_pb, drafter_info_from_pb
from taco_proto.drafts import DraftReply
from taco_scheduler.server.drafter_links import RemoteDrafterLink
from taco_scheduler.server.heartbeat_timeout import until_silent
from taco_scheduler.server.loop_calls import LoopCalls
from taco_scheduler.server.service import SchedulerService
from taco_scheduler.server.stream_protocol import (
    Context,
    StreamError,
    abort,
    attach,
    check_version,
    first,
    run_stream,
)

logger = logging.getLogger("taco.scheduler")


async def serve_drafter(
    service: SchedulerService,
    io_calls: LoopCalls,
    messages: AsyncIterator[pb.DrafterMessage],
    context: Context,
) -> None:
    """Serves an AttachDrafter stream until either side ends it; decoding continues without it."""
    calls = service.calls
    try:
        hello = await first(messages, "hello")
        check_version(hello.hello.protocol_version)
        link = RemoteDrafterLink(drafter_info_from_pb(hello.hello), io_calls)

        def leave(error: BaseException | None) -> None:
            reason = "it left" if error is None else str(error) or "the link broke"
            calls.post(service.on_drafter_lost, link, reason)

        await attach(calls.call(service.attach_drafter, link), leave)
        await run_stream(
            _read_replies(service, link, messages), _write_requests(link, context), leave
        )
    except (StreamError, DecodeError) as error:
        await abort(context, error)


async def _read_replies(
    service: SchedulerService, link: RemoteDrafterLink, messages: AsyncIterator[pb.DrafterMessage]
) -> None:
    async for message in until_silent(messages, service.config.worker_timeout):
        match message.WhichOneof("body"):
            case "reply":
                service.calls.post(_deliver, service, link, _draft_reply(message.reply))
            case "heartbeat":
                pass
            case other:
                raise StreamError(
                    grpc.StatusCode.INVALID_ARGUMENT, f"unexpected message: {other or 'empty'}"
                )


def _deliver(service: SchedulerService, link: RemoteDrafterLink, reply: DraftReply) -> None:
    """Runs on the engine's thread; a reply that fails ends the draft worker's stream."""
    try:
        service.on_drafts(link, reply)
    except Exception as error:
        logger.exception("a reply of draft worker %s failed", link.info.name)
        link.close(str(error) or repr(error))
        service.on_drafter_lost(link, str(error))


def _draft_reply(message: pb.DraftReply) -> DraftReply:
    try:
        return draft_reply_from_pb(message)
    except (ValueError, OverflowError) as error:
        raise StreamError(grpc.StatusCode.INVALID_ARGUMENT, f"invalid drafts: {error}") from None


async def _write_requests(link: RemoteDrafterLink, context: Context) -> None:
    await context.send_initial_metadata(())  # tells the draft worker that it is attached
    while (request := await link.next_request()) is not None:
        await context.write(request)
    if link.close_reason:
        raise StreamError(grpc.StatusCode.INVALID_ARGUMENT, link.close_reason)
