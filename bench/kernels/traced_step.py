"""Runs steps of a worker under a trace of its CPU kernels, and names the ops of its program."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from taco_kernels.cpu.trace import SpanKind, Trace
from taco_proto.steps import StepPlan
from taco_worker.backends.cpu.lowered_ops import LoweredOp
from taco_worker.worker import Worker

Spans = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class OpName:
    """Where an op of a program comes from.

    Attributes:
        op: the module whose weights it reads, such as attn.qkv_proj, or its kind.
        layer: None: outside of the layers.
    """

    op: str
    layer: int | None

    def __str__(self) -> str:
        return self.op if self.layer is None else f"{self.op} (layer {self.layer})"


@dataclass(frozen=True, slots=True)
class TracedStep:
    """One call of the worker; times in nanoseconds of `time.perf_counter_ns`.

    Attributes:
        threads: the spans of each thread, in the order in which they ended.
    """

    begin: int
    end: int
    threads: tuple[Spans, ...]


def trace_steps(worker: Worker, plans: Iterable[StepPlan]) -> list[TracedStep]:
    """Runs the plans one after the other.

    Raises:
        RuntimeError: a step failed, or the worker does not compute on the CPU kernels.
    """
    kernels = getattr(worker._runner._model, "_kernels", None)
    if kernels is None:
        raise RuntimeError("the worker runs on torch: only the CPU kernels can be traced")
    steps = []
    for plan in plans:
        with Trace(kernels) as trace:
            begin = time.perf_counter_ns()
            output = worker.execute(plan)
            end = time.perf_counter_ns()
        if output.error:
            raise RuntimeError(output.error)
        threads = tuple(trace.spans(thread) for thread in range(kernels.num_threads))
        steps.append(TracedStep(begin, end, threads))
    return steps


def op_names(ops: Iterable[LoweredOp]) -> list[OpName]:
    """The name of each op. An op without weights is in the layer of the op before it."""
    names: list[OpName] = []
    layer: int | None = None
    for op in ops:
        parameter = op.matrix or op.weight or op.table or _expert_parameter(op)
        if parameter is None:
            names.append(OpName(op.kind, layer))
            continue
        parts = parameter.removesuffix(".weight").split(".")
        layer = int(parts[1]) if parts[0] == "layers" else None
        names.append(OpName(".".join(parts[2:] if layer is not None else parts), layer))
    return names


def _expert_parameter(op: LoweredOp) -> str | None:
    return None if op.experts is None else op.experts.gate_up


def span_name(span: Any, names: list[OpName]) -> str:
    """What a viewer shows for one span."""
    kind = SpanKind(span["kind"])
    if kind == SpanKind.OP:
        return str(names[span["index"]])
    return kind.name.lower()
