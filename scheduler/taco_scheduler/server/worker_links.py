"""The links to a worker: in this process, or over its Attach stream. One interface, two links."""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from taco_proto import scheduler_pb2 as pb
from taco_proto.convert import step_plan_to_pb
from taco_proto.convert_kv_tiers import store_command_to_pb
from taco_proto.kv_tiers import StoreCommand, StoreReport
from taco_proto.steps import StepOutput, StepPlan, WorkerInfo

logger = logging.getLogger("taco.scheduler")


class StepExecutor(Protocol):
    """A worker in this process. It never raises for a failed step: see `StepOutput.error`."""

    @property
    def info(self) -> WorkerInfo: ...

    @property
    def is_broken(self) -> bool:
        """No step will ever succeed again."""

    def submit(self, plan: StepPlan, deliver: Callable[[StepOutput], None]) -> None:
        """Begin a step; `deliver` gets its output, in the order of the plans and in any thread.

        It may return before the step is done, so that the next one can be begun behind it.
        """

    def store(self, command: StoreCommand, report: Callable[[StoreReport], None]) -> None:
        """Let the disk tier do something; `report` may be called in any thread, and the first time
        says what there is.
        """

    def tune(self) -> bool:
        """Do a piece of work that makes later steps faster; returns whether there was one."""


class WorkerLink(Protocol):
    """A worker as the service sees it. Its outputs come in the order of the plans.

    Attributes:
        is_remote: a worker that is given up may come back, as a new link.
    """

    is_remote: bool

    @property
    def info(self) -> WorkerInfo: ...

    def send(self, plan: StepPlan) -> None:
        """Hands a plan over and returns at once."""

    def store(self, command: StoreCommand) -> None:
        """Hands a command for the disk tier over and returns at once."""

    def close(self, error: Exception | None = None) -> None:
        """No more plans. `error` tells the worker what it did wrong, if it did."""


class LocalWorkerLink:
    """Runs an executor in a thread of its own, so that planning goes on while a step runs.

    Args:
        deliver: called on the running event loop with this replica and each output.
        report: called there with this replica and what its disk tier has done.
        lost: called there with this replica and the reason when its device has failed.
    """

    is_remote = False

    def __init__(
        self,
        executor: StepExecutor,
        deliver: Callable[["LocalWorkerLink", StepOutput], None],
        report: Callable[["LocalWorkerLink", StoreReport], None],
        lost: Callable[["LocalWorkerLink", str], None],
    ) -> None:
        """Raises RuntimeError without a running event loop."""
        self.info = executor.info
        self._executor = executor
        self._deliver = deliver
        self._report = report
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._plans: queue.SimpleQueue[StepPlan | StoreCommand | None] = queue.SimpleQueue()
        self._ended = asyncio.Event()
        self._tunes = True
        self._thread = threading.Thread(target=self._run, name=self.info.name, daemon=True)
        self._thread.start()

    def send(self, plan: StepPlan) -> None:
        self._plans.put(plan)

    def store(self, command: StoreCommand) -> None:
        self._plans.put(command)

    def close(self, error: Exception | None = None) -> None:
        if error is not None:
            logger.error("worker %s: %s", self.info.name, error)
        self._plans.put(None)

    async def join(self) -> None:
        """Waits until the thread has ended, without a thread pool: an ending program has none."""
        await self._ended.wait()

    def _run(self) -> None:
        while (plan := self._next_plan()) is not None:
            if isinstance(plan, StoreCommand):
                self._executor.store(plan, self._hand_over_report)
                continue
            try:
                self._executor.submit(plan, self._hand_over)
            except Exception as error:  # its bug must not leave every request waiting
                logger.exception("worker %s raised", self.info.name)
                self._hand_over(
                    StepOutput(epoch=plan.epoch, step_id=plan.step_id, error=repr(error))
                )
        self._call(self._ended.set)

    def _next_plan(self) -> StepPlan | StoreCommand | None:
        while True:
            try:
                return self._plans.get_nowait()
            except queue.Empty:
                if not self._tune():
                    return self._plans.get()

    def _tune(self) -> bool:
        if not self._tunes:
            return False
        try:
            return self._executor.tune()
        except Exception:
            logger.exception("worker %s prepares no more for later steps", self.info.name)
            self._tunes = False
            return False

    def _hand_over(self, output: StepOutput) -> None:
        self._call(self._deliver, self, output)
        if self._executor.is_broken:
            self._call(self._lost, self, "the device has failed")

    def _hand_over_report(self, report: StoreReport) -> None:
        self._call(self._report, self, report)

    def _call(self, callback: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits for news any more
            self._loop.call_soon_threadsafe(callback, *arguments)


class RemoteWorkerLink:
    """A worker that dialled in: plans wait in a queue until its stream has taken them.

    Attributes:
        error: what the worker did wrong, if it did.
    """

    is_remote = True

    def __init__(self, info: WorkerInfo) -> None:
        self.info = info
        self.error: Exception | None = None
        self._commands: asyncio.Queue[pb.WorkerCommand | None] = asyncio.Queue()

    def send(self, plan: StepPlan) -> None:
        self._commands.put_nowait(pb.WorkerCommand(plan=step_plan_to_pb(plan)))

    def store(self, command: StoreCommand) -> None:
        self._commands.put_nowait(pb.WorkerCommand(store=store_command_to_pb(command)))

    def let_begin(self) -> None:
        """Lets the worker begin the step that it has announced."""
        self._commands.put_nowait(pb.WorkerCommand(go_ahead=pb.GoAhead()))

    def close(self, error: Exception | None = None) -> None:
        self.error = self.error or error
        self._commands.put_nowait(None)

    async def next_command(self) -> pb.WorkerCommand | None:
        """The next plan or command; None once the replica was closed."""
        return await self._commands.get()
