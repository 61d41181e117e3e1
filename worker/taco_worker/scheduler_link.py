"""A worker's Attach stream: receives plans and store commands, sends outputs and reports."""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

import grpc.aio

from taco_proto import scheduler_pb2 as pb
from taco_proto.config import TlsConfig
from taco_proto.convert import (
    step_output_to_pb,
    step_plan_from_pb,
    worker_info_to_pb,
    worker_license_to_pb,
)
from taco_proto.convert_grammars import grammar_command_from_pb, grammar_ready_to_pb
from taco_proto.convert_kv_tiers import store_command_from_pb, store_report_to_pb
from taco_proto.grammars import GrammarCommand, GrammarReady
from taco_proto.kv_tiers import StoreCommand, StoreReport
from taco_proto.licenses import NEEDS_NO_LICENSE, WorkerLicense
from taco_proto.scheduler_pb2_grpc import SchedulerStub
from taco_proto.steps import StepOutput, StepPlan, WorkerInfo
from taco_worker.licensing import Licensing
from taco_worker.model_thread import ModelThread
from taco_worker.step_metrics import StepMetrics
from taco_worker.stream_link import StreamLink

logger = logging.getLogger("taco.worker")

# Timeout for the scheduler's go-ahead. Without it the stream has ended and the output is lost.
GO_AHEAD_SECONDS = 5.0


class Executor(Protocol):
    """What a link needs of a worker; see `Worker`."""

    info: WorkerInfo
    is_broken: bool
    step_metrics: StepMetrics

    @property
    def num_graphs(self) -> int: ...

    def memory_bytes(self) -> dict[str, int]: ...

    def submit(self, plan: StepPlan, deliver: Callable[[StepOutput], None]) -> None: ...

    def store(self, command: StoreCommand, report: Callable[[StoreReport], None]) -> None: ...

    def set_grammars(
        self, command: GrammarCommand, report: Callable[[GrammarReady], None]
    ) -> None: ...

    def drain(self) -> None: ...

    def reset(self) -> None: ...

    def tune(self) -> bool: ...


class SchedulerLink(StreamLink[pb.WorkerMessage, pb.WorkerCommand]):
    """The link of a worker. The worker's batch is empty when the link starts.

    The link ends itself after the last output of a broken worker.
    """

    def __init__(
        self,
        address: str,
        worker: Executor,
        thread: ModelThread,
        tls: TlsConfig | None = None,
        licensing: Licensing | None = None,
    ) -> None:
        """Without `licensing` the worker reports that it needs no license."""
        super().__init__(address, thread, tls)
        self._worker = worker
        self._licensing = licensing
        self._go_ahead = threading.Event()

    def _open(self, stub: SchedulerStub) -> grpc.aio.StreamStreamCall:
        return stub.Attach()

    def _hello(self) -> pb.WorkerMessage:
        if self._licensing is not None:
            self._licensing.on_change = lambda: self._send(self._heartbeat())
        info = replace(self._worker.info, license=self._license())
        return pb.WorkerMessage(hello=worker_info_to_pb(info))

    def _heartbeat(self) -> pb.WorkerMessage:
        license_ = worker_license_to_pb(self._license())
        heartbeat = pb.Heartbeat(license=license_)
        return pb.WorkerMessage(heartbeat=heartbeat)

    def _license(self) -> WorkerLicense:
        return NEEDS_NO_LICENSE if self._licensing is None else self._licensing.current()

    def _leave_message(self) -> pb.WorkerMessage:
        return pb.WorkerMessage(leaving=pb.Leaving())

    def _job(self, message: pb.WorkerCommand) -> Callable[[], None] | None:
        match message.WhichOneof("body"):
            case "plan":
                return partial(self._begin, step_plan_from_pb(message.plan))
            case "store":
                command = store_command_from_pb(message.store)
                return partial(self._worker.store, command, self._send_report)
            case "grammars":
                grammars = grammar_command_from_pb(message.grammars)
                return partial(self._worker.set_grammars, grammars, self._send_grammar_ready)
            case "go_ahead":
                self._go_ahead.set()
        return None

    def _reset(self) -> None:
        self._worker.reset()

    def _drain(self) -> None:
        self._worker.drain()

    def _begin(self, plan: StepPlan) -> None:
        """Runs in the model's thread."""
        if plan.is_announced:
            self._go_ahead.clear()
            announced = pb.StepAnnounced(epoch=plan.epoch, step_id=plan.step_id)
            self._send(pb.WorkerMessage(announced=announced))
            self._go_ahead.wait(GO_AHEAD_SECONDS)
        try:
            self._worker.submit(plan, self._send_output)
        except Exception as error:  # a bug must not leave the scheduler waiting for the output
            logger.exception("step %d of epoch %d raised", plan.step_id, plan.epoch)
            self._worker.drain()  # outputs have the order of the plans
            failed = StepOutput(epoch=plan.epoch, step_id=plan.step_id, error=repr(error))
            self._send_output(failed)

    def _send_report(self, report: StoreReport) -> None:
        self._send(pb.WorkerMessage(store_report=store_report_to_pb(report)))

    def _send_grammar_ready(self, ready: GrammarReady) -> None:
        """Runs in a thread of the compiler."""
        self._send(pb.WorkerMessage(grammar_ready=grammar_ready_to_pb(ready)))

    def _send_output(self, output: StepOutput) -> None:
        """Runs in the model's thread or in the output thread."""
        failure = ""
        if self._worker.is_broken:
            failure = "the device has failed; restart the worker"
        self._send_answer(pb.WorkerMessage(output=_encoded(output)), failure)


def _encoded(output: StepOutput) -> pb.StepOutput:
    """The output, or a failed step if it cannot be encoded: the scheduler must get an answer."""
    try:
        return step_output_to_pb(output)
    except Exception as error:
        logger.exception("encoding a step's output failed")
        reason = f"the output cannot be encoded: {type(error).__name__}"
        return step_output_to_pb(
            StepOutput(epoch=output.epoch, step_id=output.step_id, error=reason)
        )
