"""Steps of a random-weight Llama-3-8B through `Worker`, beside the lower bound from the limits.

`itl_ms` is the time between consecutive steps: each is submitted while the previous one runs, as
a scheduler does. `step_ms` is a single step from its plan to its tokens; `host_ms` is the time
to submit one.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from bench.gpu.harness.context import Context
from bench.gpu.harness.trace import traced
from bench.gpu.inputs.llama import LLAMA_3_8B, TINY, Shape, model_folder
from bench.gpu.inputs.plans import Plans
from bench.gpu.parts.machine import load_ceilings
from taco_proto.config import ModelConfig, WorkerConfig
from taco_proto.steps import StepOutput, StepPlan
from taco_worker.worker import Worker

_KILO = 1024
_ROUNDS = 3
# The first steps compile, and the worker captures CUDA graphs of repeated shapes.
_WARM_UP = 12
_ALONE, _TRACED = 8, 16
_IN_FLIGHT = 2


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the measurements.

    Attributes:
        batches: numbers of decoding sequences, of `context` tokens each.
        long_contexts: tokens of one sequence that decodes.
        prefills: tokens of a prompt, and the maximum computed in one step.
        max_step_tokens: tokens per step that memory is reserved for.
        steps: consecutive timed steps of each decode.
    """

    batches: tuple[int, ...]
    context: int
    long_contexts: tuple[int, ...]
    prefills: tuple[tuple[int, int], ...]
    max_step_tokens: int
    steps: int


_REAL = Sizes(
    batches=(1, 32, 128, 256),
    context=_KILO,
    long_contexts=(8 * _KILO, 32 * _KILO),
    prefills=((_KILO, _KILO), (8 * _KILO, 8 * _KILO), (8 * _KILO, 2 * _KILO)),
    max_step_tokens=8 * _KILO,
    steps=32,
)
_TRIAL = Sizes((1, 2), 24, (40,), ((24, 24), (40, 16)), max_step_tokens=40, steps=3)
_TRIAL_BLOCKS = 64


def measure(context: Context) -> None:
    config, sizes = (LLAMA_3_8B, _REAL) if context.is_real else (TINY, _TRIAL)
    ceilings = load_ceilings(context)  # measured first, because a worker leaves no memory for it
    begun = time.perf_counter()
    with model_folder(config) as folder:
        worker = Worker(
            WorkerConfig(
                model=ModelConfig(model=folder, load_format="dummy"),
                device=context.device.type,
                max_num_seqs=max(sizes.batches),
                max_num_batched_tokens=sizes.max_step_tokens,
                num_blocks=None if context.is_real else _TRIAL_BLOCKS,
            )
        )
    floor = partial(Shape.of(config).decode_floor_ms, ceilings=ceilings)
    bench = WorkerBench(context, worker, floor, sizes)
    bench.report_start(time.perf_counter() - begun)
    bench.measure_prefills()
    bench.measure_decodes()
    bench.measure_long_contexts()


class WorkerBench:
    """One worker and its measurements; `floor` is the lower bound for a batch and context, in
    ms.
    """

    def __init__(
        self,
        context: Context,
        worker: Worker,
        floor: Callable[[int, int], float],
        sizes: Sizes,
        *,
        label: str = "",
    ) -> None:
        """`label`: what the names of decodes begin with."""
        self._label = label
        self._report = context.report
        self._device = context.device
        self._worker = worker
        self._floor = floor
        self._sizes = sizes
        # Warm-up, single, consecutive and traced steps. The first sequence is in every decode.
        steps = 2 * _WARM_UP + _ALONE + sizes.steps + _TRACED
        self._room = len(sizes.batches) * steps

    def report_start(self, seconds: float) -> None:
        """Records `seconds`, the time to create the weights and the worker."""
        begun = time.perf_counter()
        self._run_all(list(self._plans(self._sizes.context).prefills(1, self._sizes.context)))
        figures = {
            "made_seconds": round(seconds, 2),
            "first_step_seconds": round(time.perf_counter() - begun, 2),
            "num_blocks": self._worker.info.num_blocks,
            "kv_tokens": self._worker.info.num_blocks * self._worker.info.block_size,
        }
        self._report.add(
            "start", figures, f"{seconds:.1f} s + {figures['first_step_seconds']} s to first token"
        )

    def measure_prefills(self) -> None:
        for prompt_len, chunk in self._sizes.prefills:
            seconds = []
            for _ in range(_ROUNDS + 1):
                plans = list(self._plans(prompt_len).prefills(1, chunk))
                begun = time.perf_counter()
                self._run_all(plans)
                seconds.append(time.perf_counter() - begun)
            best = median(seconds[1:])  # the first step compiles
            figures = {"ms": round(1e3 * best, 3), "tok_per_s": round(prompt_len / best)}
            line = f"{figures['ms']:9.2f} ms {figures['tok_per_s']:9,} tok/s"
            self._report.add(f"prefill {prompt_len} by {chunk}", figures, line)

    def measure_decodes(self) -> None:
        plans = self._plans(self._sizes.context)
        count = min(max(self._sizes.batches), plans.most_sequences)
        self._run_all(list(plans.prefills(count, self._sizes.max_step_tokens)))
        for batch in self._sizes.batches:
            name = f"{self._label}decode {batch}x{self._sizes.context}"
            if batch > count:
                self._report.leave_out(name, f"there are KV blocks for {count} sequences only")
            elif self._report.has_time(name, 4.0):
                self._measure_decode(name, plans, batch, self._sizes.context)

    def measure_long_contexts(self) -> None:
        for context_len in self._sizes.long_contexts:
            name = f"decode 1x{context_len}"
            if not self._report.has_time(name, 6.0):
                continue
            plans = self._plans(context_len)
            if not plans.most_sequences:
                self._report.leave_out(name, "there are not KV blocks enough")
                continue
            self._run_all(list(plans.prefills(1, self._sizes.max_step_tokens)))
            self._measure_decode(name, plans, 1, context_len)

    def _measure_decode(self, name: str, plans: Plans, batch: int, context_len: int) -> None:
        def decodes(count: int) -> list[StepPlan]:
            return [plans.decode(batch) for _ in range(count)]

        self._run_all(decodes(_WARM_UP))
        while self._worker.tune(between_steps=True):
            pass
        self._run_all(decodes(_WARM_UP))
        alone = [self._run_alone(plan) for plan in decodes(_ALONE)]
        itl, host = self._run_all(decodes(self._sizes.steps))
        with traced(self._device, trim=0.1) as trace:
            self._run_all(decodes(_TRACED))
        floor = self._floor(batch, context_len)
        figures: dict[str, Any] = {
            "itl_ms": round(itl, 3),
            "step_ms": round(median(alone), 3),
            "host_ms": round(host, 3),
            "tok_per_s": round(1e3 * batch / itl),
            "floor_ms": round(floor, 3),
            "floor_share": round(floor / itl, 3),
            "traced": trace.record(),
        }
        self._report.add(
            name,
            figures,
            f"{itl:9.3f} ms {figures['tok_per_s']:9,} tok/s, floor {floor:.3f} ms, host "
            f"{host:.3f} ms, idle {trace.idle_share:.1%}",
        )

    def _plans(self, prompt_len: int) -> Plans:
        """Returns plans for a new batch."""
        self._worker.reset()
        return Plans(self._worker.info, prompt_len, self._room)

    def _run_alone(self, plan: StepPlan) -> float:
        """Returns milliseconds per single step."""
        begun = time.perf_counter()
        _check(self._worker.execute(plan))
        return 1e3 * (time.perf_counter() - begun)

    def _run_all(self, plans: Sequence[StepPlan]) -> tuple[float, float]:
        """Returns the median milliseconds between steps, and of submitting one."""
        outputs: queue.SimpleQueue[StepOutput] = queue.SimpleQueue()
        submits = []
        begun = time.perf_counter()
        for index, plan in enumerate(plans):
            submitted = time.perf_counter()
            self._worker.submit(plan, outputs.put)
            submits.append(time.perf_counter() - submitted)
            if index >= _IN_FLIGHT - 1:
                _check(outputs.get())
        for _ in plans[: _IN_FLIGHT - 1]:
            _check(outputs.get())
        return 1e3 * (time.perf_counter() - begun) / len(plans), 1e3 * median(submits)


def _check(output: StepOutput) -> None:
    if output.error:
        raise RuntimeError(output.error)
