"""A gateway and a worker, as far as the scheduler's gRPC server can see."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from support.engine_driver import Received
from support.fake_worker import FakeWorker
from support.patience import PATIENCE_SECONDS
from taco_proto import scheduler_pb2 as pb
from taco_proto.config import PROTOCOL_VERSION
from taco_proto.convert import (
    step_output_to_pb,
    step_plan_from_pb,
    submit_to_pb,
    worker_info_to_pb,
)
from taco_proto.requests import GenerateRequest
from taco_proto.scheduler_pb2_grpc import SchedulerStub
from taco_proto.steps import StepPlan


class GatewayPeer:
    """One Generate stream."""

    def __init__(self, stub: SchedulerStub) -> None:
        self.call = stub.Generate()
        self.received = Received()
        self.models: list[pb.ModelInfo] = []

    async def hello(self, version: int = PROTOCOL_VERSION) -> None:
        hello = pb.GatewayHello(protocol_version=version, name="gateway")
        await self.call.write(pb.GatewayMessage(hello=hello))

    async def submit(self, request: GenerateRequest) -> None:
        await self.call.write(pb.GatewayMessage(submit=submit_to_pb(request, time.monotonic())))

    async def read_until(self, done: Callable[[Received], bool]) -> Received:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not done(self.received):
                message = await self.call.read()
                assert message is not grpc.aio.EOF, await self.call.details()
                if message.WhichOneof("body") == "model":
                    self.models.append(message.model)
                else:
                    self.received.add(message.outputs)
        return self.received

    async def read_ends(self, num_ends: int) -> Received:
        return await self.read_until(lambda got: len(got.reasons) + len(got.errors) >= num_ends)


class WorkerPeer:
    """One Attach stream, with a fake model behind it.

    Attributes:
        wants_to_leave: it says so after its next step.
    """

    def __init__(self, stub: SchedulerStub, worker: FakeWorker) -> None:
        self.call = stub.Attach()
        self.worker = worker
        self.num_steps = 0
        self.wants_to_leave = False
        self._ended = asyncio.Event()
        self._plans: deque[StepPlan] = deque()

    async def hello(self, version: int = PROTOCOL_VERSION) -> None:
        hello = worker_info_to_pb(self.worker.info)
        hello.protocol_version = version
        await self.call.write(pb.WorkerMessage(hello=hello))

    def hold(self, command: pb.WorkerCommand) -> None:
        """A plan that was read from `call`: `serve` runs it first."""
        self._plans.append(step_plan_from_pb(command.plan))

    async def serve(self, num_steps: int | None = None) -> None:
        """Runs `num_steps` plans, or all until the scheduler ends the stream."""
        while num_steps is None or self.num_steps < num_steps:
            plan = await self._next_plan()
            if plan is None:
                self._ended.set()
                return
            if plan.is_announced:
                await self.announce(plan)
            output = self.worker.execute(plan)
            self.num_steps += 1
            await self.call.write(pb.WorkerMessage(output=step_output_to_pb(output)))
            if self.wants_to_leave:
                self.wants_to_leave = False
                await self.call.write(pb.WorkerMessage(leaving=pb.Leaving()))

    async def announce(self, plan: StepPlan) -> None:
        """Says that a step begins; returns when it may."""
        announced = pb.StepAnnounced(epoch=plan.epoch, step_id=plan.step_id)
        await self.call.write(pb.WorkerMessage(announced=announced))
        while not (command := await self.call.read()).HasField("go_ahead"):
            self._plans.append(step_plan_from_pb(command.plan))

    async def _next_plan(self) -> StepPlan | None:
        if self._plans:
            return self._plans.popleft()
        command = await self.call.read()
        return None if command is grpc.aio.EOF else step_plan_from_pb(command.plan)

    async def ended(self) -> grpc.StatusCode:
        """Waits until `serve` has come to the end of the stream; its status."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._ended.wait()
            return await self.call.code()


@asynccontextmanager
async def dial(address: str) -> AsyncIterator[SchedulerStub]:
    async with grpc.aio.insecure_channel(address) as channel:
        yield SchedulerStub(channel)


@asynccontextmanager
async def background(coroutine: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(coroutine)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def status(call: grpc.aio.StreamStreamCall) -> grpc.StatusCode:
    """Reads a stream to its end, which must come, and returns its status."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        try:
            while await call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return error.code()
        return await call.code()
