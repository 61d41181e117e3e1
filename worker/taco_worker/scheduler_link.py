"""One Attach stream to the scheduler: plans down, outputs and heartbeats up."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Protocol

import grpc
import grpc.aio

from taco_proto import scheduler_pb2 as pb
from taco_proto.config import MAX_MESSAGE_BYTES
from taco_proto.convert import step_output_to_pb, step_plan_from_pb, worker_info_to_pb
from taco_proto.scheduler_pb2_grpc import SchedulerStub
from taco_proto.steps import StepOutput, StepPlan, WorkerInfo
from taco_worker.model_thread import ModelThread

HEARTBEAT_SECONDS = 2.0
_GOODBYE_SECONDS = 2.0
_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # A peer that vanishes without closing is found after 15 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)


class Executor(Protocol):
    """What runs plans; see `Worker`."""

    info: WorkerInfo
    is_broken: bool

    def submit(self, plan: StepPlan, deliver: Callable[[StepOutput], None]) -> None: ...

    def drain(self) -> None: ...

    def reset(self) -> None: ...

    def tune(self) -> bool: ...


class SchedulerLink:
    """From hello to the end of the stream; a new stream is a new link, with an empty batch.

    It ends of itself once the worker is broken and has said so in its last output.

    Attributes:
        num_plans: plans that came down this link.
    """

    def __init__(self, address: str, worker: Executor, thread: ModelThread) -> None:
        self.num_plans = 0
        self._address = address
        self._worker = worker
        self._thread = thread
        self._loop = asyncio.get_running_loop()
        self._outbox: asyncio.Queue[pb.WorkerMessage | None] = asyncio.Queue()
        self._steps: set[Future[None]] = set()
        self._steps_done = 0
        self._is_leaving = False

    async def run(self, stop: asyncio.Event) -> str:
        """Serve until `stop` is set or the stream ends; says why it ended.

        When told to stop, it finishes the step in hand and sends its output.
        """
        await asyncio.wrap_future(self._thread.submit(self._worker.reset))
        hello = worker_info_to_pb(self._worker.info)
        self._outbox.put_nowait(pb.WorkerMessage(hello=hello))
        async with grpc.aio.insecure_channel(self._address, options=_CHANNEL_OPTIONS) as channel:
            stream = SchedulerStub(channel).Attach()
            reader = asyncio.create_task(self._read(stream))
            writer = asyncio.create_task(self._write(stream))
            heart = asyncio.create_task(self._beat())
            stopped = asyncio.create_task(stop.wait())
            try:
                await asyncio.wait({reader, writer, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if stopped.done():
                    await self._say_goodbye(reader, writer)
                return await _reason(stream, reader)
            finally:
                self._drop_waiting_steps()
                await _cancel((reader, writer, heart, stopped))
                stream.cancel()

    async def _read(self, stream: grpc.aio.StreamStreamCall) -> None:
        async for command in stream:
            if command.WhichOneof("body") == "plan" and not self._is_leaving:
                self.num_plans += 1
                plan = step_plan_from_pb(command.plan)
                step = self._thread.submit(partial(self._worker.submit, plan, self._send))
                self._steps.add(step)
                step.add_done_callback(self._steps.discard)

    async def _write(self, stream: grpc.aio.StreamStreamCall) -> None:
        while (message := await self._outbox.get()) is not None:
            await stream.write(message)
        await stream.done_writing()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            heartbeat = pb.Heartbeat(steps_done=self._steps_done)
            self._outbox.put_nowait(pb.WorkerMessage(heartbeat=heartbeat))

    def _send(self, output: StepOutput) -> None:
        """Runs in the model's thread, or in the worker's own."""
        self._steps_done += 1
        message = pb.WorkerMessage(output=step_output_to_pb(output))
        with contextlib.suppress(RuntimeError):  # the loop is closed: the service has ended
            self._loop.call_soon_threadsafe(self._outbox.put_nowait, message)
            if self._worker.is_broken:
                self._loop.call_soon_threadsafe(self._outbox.put_nowait, None)

    async def _say_goodbye(self, reader: asyncio.Task[None], writer: asyncio.Task[None]) -> None:
        """Leaves the reader alone, since a read that is cancelled takes the stream with it."""
        self._is_leaving = True
        self._drop_waiting_steps()
        # Behind the step in hand, whose output is then in the outbox.
        await asyncio.wrap_future(self._thread.submit(self._worker.drain))
        self._outbox.put_nowait(None)
        await asyncio.wait({reader, writer}, timeout=_GOODBYE_SECONDS)

    def _drop_waiting_steps(self) -> None:
        for step in tuple(self._steps):
            step.cancel()


async def _reason(stream: grpc.aio.StreamStreamCall, reader: asyncio.Task[None]) -> str:
    if stream.done() and (code := await stream.code()) != grpc.StatusCode.OK:
        return f"{code.name}: {await stream.details()}"
    if reader.done() and not reader.cancelled() and (error := reader.exception()):
        return f"a plan cannot be read: {error}"
    return "the stream was closed"


async def _cancel(tasks: Iterable[asyncio.Task[object]]) -> None:
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task
