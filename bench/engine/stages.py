"""The stages of a step in the offline engine, by the functions that they consist of."""

from __future__ import annotations

from typing import Any

from bench.engine.stage_clock import StageClock
from taco_gateway.engine.request_table import RequestTable
from taco_gateway.engine.token_stream import TokenStream
from taco_gateway.text.output.output_processor import OutputProcessor
from taco_llm.outputs import RequestOutput
from taco_scheduler.core.engine import Engine
from taco_scheduler.core.step_loop import StepLoop
from taco_scheduler.server.service import SchedulerService
from taco_scheduler.server.worker_links import LocalWorkerLink
from taco_scheduler.state.output_buffer import OutputBuffer
from taco_worker.backends.cpu.cpu_model import CpuModel
from taco_worker.batch.input_batch import InputBatch
from taco_worker.execution import model_runner
from taco_worker.execution.launched_step import LaunchedStep
from taco_worker.execution.model_runner import ModelRunner
from taco_worker.grammars.slot_matchers import SlotMatchers
from taco_worker.speculation.grammar_drafter import GrammarDrafter
from taco_worker.worker import Worker

_STAGES: tuple[tuple[Any, str, str], ...] = (
    (Worker, "submit", "worker: step"),
    (ModelRunner, "launch", "worker: step"),
    (InputBatch, "apply", "worker: plan"),
    (GrammarDrafter, "draft", "worker: forced tokens"),
    (SlotMatchers, "begin", "worker: begin masks"),
    (SlotMatchers, "_compute", "masks"),
    (model_runner, "make_input", "worker: input"),
    (CpuModel, "_forward", "worker: call the kernels"),
    (ModelRunner, "_sample", "worker: sample"),
    (ModelRunner, "_sample_rest", "worker: sample"),
    (InputBatch, "advance", "worker: advance"),
    (InputBatch, "advance_by", "worker: advance"),
    (LaunchedStep, "__init__", "worker: output"),
    (LaunchedStep, "wait", "worker: output"),
    (LocalWorkerLink, "_on_output", "worker: deliver"),
    (SchedulerService, "_turn", "scheduler: turn"),
    (StepLoop, "commit", "scheduler: commit"),
    (Engine, "plan", "scheduler: plan"),
    (OutputBuffer, "take", "client: take"),
    (RequestTable, "dispatch", "client: dispatch"),
    (TokenStream, "push", "client: push"),
    (OutputProcessor, "feed", "client: text"),
    (RequestOutput, "add", "client: add"),
)


def watch_stages(clock: StageClock) -> None:
    """Times the stages of every engine that is made later in this process."""
    for owner, name, stage in _STAGES:
        clock.watch(owner, name, stage)
