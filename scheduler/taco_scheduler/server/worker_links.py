"""The transports to a worker: `LocalWorkerLink` in this process, `RemoteWorkerLink` over gRPC.

A link carries step plans to the worker. The scheduler's state of that worker is `Replica`.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from taco_proto import scheduler_pb2 as pb
from taco_proto.convert import step_plan_to_pb
from taco_proto.convert_grammars import grammar_command_to_pb
from taco_proto.convert_kv_tiers import store_command_to_pb
from taco_proto.grammars import GrammarCommand, GrammarReady
from taco_proto.kv_tiers import StoreCommand, StoreReport
from taco_proto.steps import StepOutput, StepPlan, WorkerInfo

logger = logging.getLogger("taco.scheduler")


class StepExecutor(Protocol):
    """A worker in this process. A failed step does not raise: see `StepOutput.error`."""

    @property
    def info(self) -> WorkerInfo: ...

    @property
    def is_broken(self) -> bool:
        """True if no later step can succeed."""

    def submit(self, plan: StepPlan, deliver: Callable[[StepOutput], None]) -> None:
        """Starts a step. `deliver` gets its output, in the order of the plans and in any thread.

        It may return before the step is done, so that the next step can be queued behind it.
        """

    def store(self, command: StoreCommand, report: Callable[[StoreReport], None]) -> None:
        """Runs a command of the disk tier. `report` may be called in any thread; its first call
        lists the blocks on disk.
        """

    def set_grammars(self, command: GrammarCommand, report: Callable[[GrammarReady], None]) -> None:
        """Compiles and releases grammars. `report` may be called in any thread, once for each
        grammar to compile.
        """

    def tune(self) -> bool:
        """Runs one piece of work that makes later steps faster; False if there was none."""


class WorkerLink(Protocol):
    """The transport to one worker. Outputs arrive in the order of the plans.

    Attributes:
        is_remote: a lost worker may attach again, as a new link.
    """

    is_remote: bool

    @property
    def info(self) -> WorkerInfo: ...

    def send(self, plan: StepPlan) -> None:
        """Sends a plan; returns at once."""

    def store(self, command: StoreCommand) -> None:
        """Sends a command for the disk tier; returns at once."""

    def set_grammars(self, command: GrammarCommand) -> None:
        """Sends which grammars to compile and to release, in the order of the plans; returns at
        once."""

    def close(self, error: Exception | None = None) -> None:
        """Ends the link. `error` tells the worker which rule it broke."""


_Command = StepPlan | StoreCommand | GrammarCommand


class LocalWorkerLink:
    """Runs an executor in its own thread, so that the engine plans while a step runs.

    Args:
        deliver: called on the running event loop with this link and each output.
        report: called there with this link and each report of the disk tier.
        grammar_ready: called there with this link and each grammar that was compiled.
        lost: called there with this link and the reason when the device has failed.
    """

    is_remote = False

    def __init__(
        self,
        executor: StepExecutor,
        deliver: Callable[["LocalWorkerLink", StepOutput], None],
        report: Callable[["LocalWorkerLink", StoreReport], None],
        grammar_ready: Callable[["LocalWorkerLink", GrammarReady], None],
        lost: Callable[["LocalWorkerLink", str], None],
    ) -> None:
        """Raises RuntimeError without a running event loop."""
        self.info = executor.info
        self._executor = executor
        self._deliver = deliver
        self._report = report
        self._grammar_ready = grammar_ready
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._plans: queue.SimpleQueue[_Command | None] = queue.SimpleQueue()
        self._ended = asyncio.Event()
        self._tunes = True
        self._thread = threading.Thread(target=self._run, name=self.info.name, daemon=True)
        self._thread.start()

    def send(self, plan: StepPlan) -> None:
        self._plans.put(plan)

    def store(self, command: StoreCommand) -> None:
        self._plans.put(command)

    def set_grammars(self, command: GrammarCommand) -> None:
        self._plans.put(command)

    def close(self, error: Exception | None = None) -> None:
        if error is not None:
            logger.error("worker %s: %s", self.info.name, error)
        self._plans.put(None)

    async def join(self) -> None:
        """Waits until the thread has ended, without a thread pool: an exiting program has none."""
        await self._ended.wait()

    def _run(self) -> None:
        while (plan := self._next_plan()) is not None:
            if isinstance(plan, StoreCommand):
                self._executor.store(plan, self._on_report)
                continue
            if isinstance(plan, GrammarCommand):
                self._executor.set_grammars(plan, self._on_grammar_ready)
                continue
            try:
                self._executor.submit(plan, self._on_output)
            except Exception as error:  # a bug of the executor must not block every request
                logger.exception("worker %s raised", self.info.name)
                self._on_output(
                    StepOutput(epoch=plan.epoch, step_id=plan.step_id, error=repr(error))
                )
        self._call(self._ended.set)

    def _next_plan(self) -> _Command | None:
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
            logger.exception("worker %s stops tuning later steps", self.info.name)
            self._tunes = False
            return False

    def _on_output(self, output: StepOutput) -> None:
        self._call(self._deliver, self, output)
        if self._executor.is_broken:
            self._call(self._lost, self, "the device has failed")

    def _on_report(self, report: StoreReport) -> None:
        self._call(self._report, self, report)

    def _on_grammar_ready(self, ready: GrammarReady) -> None:
        self._call(self._grammar_ready, self, ready)

    def _call(self, callback: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: nothing waits for the output
            self._loop.call_soon_threadsafe(callback, *arguments)


class RemoteWorkerLink:
    """A worker that dialled in. Commands wait in a queue until its stream writes them.

    Attributes:
        error: the rule that the worker broke; None: none.
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

    def set_grammars(self, command: GrammarCommand) -> None:
        self._commands.put_nowait(pb.WorkerCommand(grammars=grammar_command_to_pb(command)))

    def send_go_ahead(self) -> None:
        """Lets the worker begin the step that it announced."""
        self._commands.put_nowait(pb.WorkerCommand(go_ahead=pb.GoAhead()))

    def close(self, error: Exception | None = None) -> None:
        self.error = self.error or error
        self._commands.put_nowait(None)

    async def next_command(self) -> pb.WorkerCommand | None:
        """Waits for the next command; None once the link was closed."""
        return await self._commands.get()
