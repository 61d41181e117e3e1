"""The stream of a draft worker."""

from collections.abc import AsyncIterator

import grpc
from google.protobuf.message import DecodeError

from taco_proto import scheduler_pb2 as pb
from taco_proto.convert_drafts import draft_reply_from_pb, drafter_info_from_pb
from taco_proto.drafts import DraftReply
from taco_scheduler.server.drafter_links import RemoteDrafter
from taco_scheduler.server.service import SchedulerService
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


async def serve_drafter(
    service: SchedulerService, messages: AsyncIterator[pb.DrafterMessage], context: Context
) -> None:
    """Runs an AttachDrafter stream until either side ends it; decoding then goes on without."""
    try:
        hello = await first(messages, "hello")
        check_version(hello.hello.protocol_version)
        link = RemoteDrafter(drafter_info_from_pb(hello.hello))
        attach(lambda: service.attach_drafter(link))

        def leave(error: BaseException | None) -> None:
            reason = "it left" if error is None else str(error) or "the link broke"
            service.lose_drafter(link, reason)

        await run(_read_drafter(service, link, messages), _write_drafter(link, context), leave)
    except (StreamError, DecodeError) as error:
        await abort(context, error)


async def _read_drafter(
    service: SchedulerService, link: RemoteDrafter, messages: AsyncIterator[pb.DrafterMessage]
) -> None:
    async for message in unless_silent(messages, service.config.worker_timeout):
        match message.WhichOneof("body"):
            case "reply":
                service.deliver_drafts(link, _read_reply(message.reply))
            case "heartbeat":
                pass
            case other:
                raise StreamError(
                    grpc.StatusCode.INVALID_ARGUMENT, f"unexpected message: {other or 'empty'}"
                )


def _read_reply(message: pb.DraftReply) -> DraftReply:
    try:
        return draft_reply_from_pb(message)
    except (ValueError, OverflowError) as error:
        raise StreamError(grpc.StatusCode.INVALID_ARGUMENT, f"invalid drafts: {error}") from None


async def _write_drafter(link: RemoteDrafter, context: Context) -> None:
    await context.send_initial_metadata(())  # by which the draft worker knows that it was taken in
    while (request := await link.next_request()) is not None:
        await context.write(request)
    if link.close_reason:
        raise StreamError(grpc.StatusCode.INVALID_ARGUMENT, link.close_reason)
