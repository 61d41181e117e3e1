"""The AttachDrafter stream of one draft worker: drafts in, requests for drafts out."""

from collections.abc import AsyncIterator

import grpc
from google.protobuf.message import DecodeError

from taco_proto import scheduler_pb2 as pb
from taco_proto.convert_drafts import draft_reply_from_pb, drafter_info_from_pb
from taco_proto.drafts import DraftReply
from taco_scheduler.server.drafter_links import RemoteDrafterLink
from taco_scheduler.server.heartbeat_timeout import until_silent
from taco_scheduler.server.service import SchedulerService
from taco_scheduler.server.stream_protocol import (
    Context,
    StreamError,
    abort,
    attach,
    check_version,
    first,
    read_stream,
    run_stream,
)


async def serve_drafter(
    service: SchedulerService, messages: AsyncIterator[pb.DrafterMessage], context: Context
) -> None:
    """Serves an AttachDrafter stream until either side ends it; decoding continues without it."""
    try:
        hello = await first(messages, "hello")
        check_version(hello.hello.protocol_version)
        link = RemoteDrafterLink(drafter_info_from_pb(hello.hello))
        attach(lambda: service.attach_drafter(link))

        def leave(error: BaseException | None) -> None:
            reason = "it left" if error is None else str(error) or "the link broke"
            service.on_drafter_lost(link, reason)

        heard = until_silent(messages, service.config.worker_timeout)
        await run_stream(
            read_stream(heard, lambda message: _take(service, link, message), link.info.name),
            _write_requests(link, context),
            leave,
        )
    except (StreamError, DecodeError) as error:
        await abort(context, error)


def _take(service: SchedulerService, link: RemoteDrafterLink, message: pb.DrafterMessage) -> None:
    match message.WhichOneof("body"):
        case "reply":
            service.on_drafts(link, _draft_reply(message.reply))
        case "heartbeat":
            pass
        case other:
            raise StreamError(
                grpc.StatusCode.INVALID_ARGUMENT, f"unexpected message: {other or 'empty'}"
            )


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
