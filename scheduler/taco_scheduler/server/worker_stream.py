"""The Attach stream of one worker: step outputs and heartbeats in, step plans out.

A worker that sends nothing for `worker_timeout` seconds (heartbeat timeout) is lost; the engine
then runs its sequences on other workers.
"""

import asyncio
from collections.abc import AsyncIterator

import grpc
from google.protobuf.message import DecodeError

from taco_proto import scheduler_pb2 as pb
from taco_proto.convert import step_output_from_pb, worker_info_from_pb, worker_license_from_pb
from taco_proto.convert_grammars import grammar_ready_from_pb
from taco_proto.convert_kv_tiers import store_report_from_pb
from taco_proto.kv_tiers import StoreReport
from taco_proto.steps import StepOutput
from taco_scheduler.server.heartbeat_timeout import until_silent
from taco_scheduler.server.service import SchedulerService, StalledError
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
from taco_scheduler.server.worker_links import RemoteWorkerLink
from taco_scheduler.state.in_flight import StaleOutputError

# After a worker half-closes its stream: seconds until gRPC reports whether the worker died.
GOODBYE_SECONDS = 0.1


async def serve_worker(
    service: SchedulerService, messages: AsyncIterator[pb.WorkerMessage], context: Context
) -> None:
    """Serves an Attach stream until either side ends it; then its sequences run elsewhere."""
    try:
        hello = await first(messages, "hello")
        check_version(hello.hello.protocol_version)
        link = RemoteWorkerLink(worker_info_from_pb(hello.hello))
        attach(lambda: service.attach(link))

        def leave(error: BaseException | None) -> None:
            reason = "it left" if error is None else str(error) or "the link broke"
            service.on_worker_lost(link, reason, is_fault=error is not None)

        await run_stream(
            _read_outputs(service, link, messages), _write_commands(link, context), leave
        )
    except (StreamError, DecodeError) as error:
        await abort(context, error)


async def _read_outputs(
    service: SchedulerService, link: RemoteWorkerLink, messages: AsyncIterator[pb.WorkerMessage]
) -> None:
    heard = until_silent(messages, service.config.worker_timeout)
    await read_stream(heard, lambda message: _take(service, link, message), link.info.name)
    # A dead worker looks like one that left, until gRPC cancels its call.
    await asyncio.sleep(GOODBYE_SECONDS)


def _take(service: SchedulerService, link: RemoteWorkerLink, message: pb.WorkerMessage) -> None:
    match message.WhichOneof("body"):
        case "output":
            service.on_step_output(link, _step_output(message.output))
        case "heartbeat":
            service.on_license_change(link, worker_license_from_pb(message.heartbeat))
        case "store_report":
            service.on_store_report(link, _store_report(message.store_report))
        case "grammar_ready":
            service.on_grammar_ready(link, grammar_ready_from_pb(message.grammar_ready))
        case "announced":
            service.on_step_announced(link, message.announced.epoch, message.announced.step_id)
            link.send_go_ahead()
        case "leaving":
            service.drain_worker(link)
        case other:
            raise StreamError(
                grpc.StatusCode.INVALID_ARGUMENT, f"unexpected message: {other or 'empty'}"
            )


def _step_output(message: pb.StepOutput) -> StepOutput:
    try:
        return step_output_from_pb(message)
    except (ValueError, OverflowError) as error:  # slots and tokens are signed 32-bit integers
        raise StreamError(grpc.StatusCode.INVALID_ARGUMENT, f"invalid output: {error}") from None


def _store_report(message: pb.StoreReport) -> StoreReport:
    try:
        return store_report_from_pb(message)
    except ValueError as error:
        raise StreamError(grpc.StatusCode.INVALID_ARGUMENT, f"invalid report: {error}") from None


async def _write_commands(link: RemoteWorkerLink, context: Context) -> None:
    await context.send_initial_metadata(())  # tells the worker that it is attached
    while (command := await link.next_command()) is not None:
        await context.write(command)
    if link.error is not None:
        raise StreamError(_status_of(link.error), str(link.error))


def _status_of(error: Exception) -> grpc.StatusCode:
    match error:
        case StaleOutputError():
            return grpc.StatusCode.ABORTED
        case StalledError():
            return grpc.StatusCode.DEADLINE_EXCEEDED
    return grpc.StatusCode.INVALID_ARGUMENT
