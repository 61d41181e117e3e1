"""A scheduler as far as a worker or a draft worker that dials in can see."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import TypeVar

import grpc
import grpc.aio

from support.patience import PATIENCE_SECONDS
from taco_proto import scheduler_pb2 as pb
from taco_proto.convert import step_plan_to_pb
from taco_proto.convert_drafts import draft_reply_from_pb, draft_request_to_pb
from taco_proto.convert_kv_tiers import store_command_to_pb, store_report_from_pb
from taco_proto.drafts import DraftReply, DraftRequest
from taco_proto.kv_tiers import StoreCommand, StoreReport
from taco_proto.scheduler_pb2_grpc import SchedulerServicer, add_SchedulerServicer_to_server
from taco_proto.steps import StepPlan

T = TypeVar("T")

REFUSAL = "it drafts in another vocabulary"


class FakeScheduler(SchedulerServicer):
    """Sends what a test gives it, and keeps what comes up.

    In `plans` and `requests`, None ends the stream. A status code in `requests` refuses it, and
    every one that is dialled after it, as a scheduler does.

    Attributes:
        lets_leave: a worker that wants to leave may do so at once.
    """

    def __init__(self) -> None:
        self.plans: asyncio.Queue[
            StepPlan | pb.StepPlan | StoreCommand | pb.WorkerCommand | None
        ] = asyncio.Queue()
        self.requests: asyncio.Queue[DraftRequest | grpc.StatusCode | None] = asyncio.Queue()
        self.worker_hellos: asyncio.Queue[pb.WorkerHello] = asyncio.Queue()
        self.drafter_hellos: asyncio.Queue[pb.DrafterHello] = asyncio.Queue()
        self.outputs: asyncio.Queue[pb.StepOutput] = asyncio.Queue()
        self.reports: asyncio.Queue[StoreReport] = asyncio.Queue()
        self.replies: asyncio.Queue[DraftReply] = asyncio.Queue()
        self.heartbeats: asyncio.Queue[pb.Heartbeat] = asyncio.Queue()
        self.announced: asyncio.Queue[pb.StepAnnounced] = asyncio.Queue()
        self.leavings: asyncio.Queue[None] = asyncio.Queue()
        self.goodbyes: asyncio.Queue[None] = asyncio.Queue()
        self.lets_leave = True

    async def Attach(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.WorkerMessage], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.WorkerCommand]:
        await context.send_initial_metadata(())
        with self._listening(request_iterator):
            while (plan := await self.plans.get()) is not None:
                yield _command(plan)

    async def AttachDrafter(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.DrafterMessage], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.DraftRequest]:
        # gRPC reports a stream that ends while its peer writes as INTERNAL. The scheduler, too,
        # reads the hello before it rejects a draft worker.
        self.drafter_hellos.put_nowait((await anext(request_iterator)).hello)
        with self._listening(request_iterator):
            while (request := await self.requests.get()) is not None:
                if isinstance(request, grpc.StatusCode):
                    self.requests.put_nowait(request)
                    await context.abort(request, REFUSAL)
                else:
                    yield draft_request_to_pb(request)

    @contextlib.contextmanager
    def _listening(
        self, messages: AsyncIterator[pb.WorkerMessage] | AsyncIterator[pb.DrafterMessage]
    ) -> Iterator[None]:
        listener = asyncio.create_task(self._listen(messages))
        try:
            yield
        finally:
            listener.cancel()

    async def _listen(
        self, messages: AsyncIterator[pb.WorkerMessage] | AsyncIterator[pb.DrafterMessage]
    ) -> None:
        async for message in messages:
            if message.HasField("heartbeat"):
                self.heartbeats.put_nowait(message.heartbeat)
            elif isinstance(message, pb.WorkerMessage):
                if message.HasField("hello"):
                    self.worker_hellos.put_nowait(message.hello)
                elif message.HasField("leaving"):
                    self._let_leave()
                elif message.HasField("announced"):
                    self.announced.put_nowait(message.announced)
                elif message.HasField("store_report"):
                    self.reports.put_nowait(store_report_from_pb(message.store_report))
                else:
                    self.outputs.put_nowait(message.output)
            else:
                self.replies.put_nowait(draft_reply_from_pb(message.reply))
        self.goodbyes.put_nowait(None)
        self.plans.put_nowait(None)
        self.requests.put_nowait(None)

    def _let_leave(self) -> None:
        self.leavings.put_nowait(None)
        if self.lets_leave:
            self.goodbyes.put_nowait(None)
            self.plans.put_nowait(None)


def _command(
    plan: StepPlan | pb.StepPlan | StoreCommand | pb.WorkerCommand,
) -> pb.WorkerCommand:
    if isinstance(plan, pb.WorkerCommand):
        return plan
    if isinstance(plan, StoreCommand):
        return pb.WorkerCommand(store=store_command_to_pb(plan))
    return pb.WorkerCommand(plan=step_plan_to_pb(plan) if isinstance(plan, StepPlan) else plan)


@contextlib.asynccontextmanager
async def serve(address: str) -> AsyncIterator[FakeScheduler]:
    scheduler = FakeScheduler()
    server = grpc.aio.server()
    add_SchedulerServicer_to_server(scheduler, server)
    server.add_insecure_port(address)
    await server.start()
    try:
        yield scheduler
    finally:
        await server.stop(None)


async def soon(awaitable: Awaitable[T]) -> T:
    return await asyncio.wait_for(awaitable, PATIENCE_SECONDS)
