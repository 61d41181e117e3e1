"""Cost of verifying drafts: whole steps through `Worker`, beside the same step without drafts.

Drafts are random tokens and are all verified; nothing is accepted except by chance. Both steps
wait for their tokens. The gain of decoding without waiting is `itl_ms` of the part `worker`.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch

from bench.gpu.harness.context import Context
from bench.gpu.harness.trace import traced
from bench.gpu.inputs.llama import LLAMA_3_8B, TINY, model_folder
from bench.gpu.inputs.plans import Plans
from support.every_draft import verify_every_draft
from taco_proto.config import ModelConfig, SpeculationConfig, WorkerConfig
from taco_proto.steps import IntArray
from taco_worker.worker import Worker

_NUM_DRAFTS = (0, 4, 8)
_WARM_UP = 4
# Steps of a case: warm-up before and after the capture of CUDA graphs, timed, traced.
_CASE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Sizes:
    batches: tuple[int, ...]
    context: int
    chunk: int
    timed: int
    traced: int


_REAL = Sizes((1, 8, 32), 1024, 8192, timed=24, traced=8)
_TRIAL = Sizes((1, 2), 24, 40, timed=2, traced=1)


def measure_verification(context: Context) -> None:
    """Records one line per batch and number of rows per sequence, such as "verify 8x5"."""
    config, sizes = (LLAMA_3_8B, _REAL) if context.is_real else (TINY, _TRIAL)
    steps = len(sizes.batches) * len(_NUM_DRAFTS) * (2 * _WARM_UP + sizes.timed + sizes.traced)
    room = 2 * steps
    blocks_each = -(-(sizes.context + room + 1) // 16)
    with pytest.MonkeyPatch.context() as patch, model_folder(config) as folder:
        verify_every_draft(patch)
        worker = Worker(
            WorkerConfig(
                model=ModelConfig(model=folder, load_format="dummy"),
                device=context.device.type,
                max_num_seqs=max(sizes.batches),
                max_num_batched_tokens=sizes.chunk,
                num_blocks=max(sizes.batches) * blocks_each,
                speculation=SpeculationConfig(num_speculative_tokens=max(_NUM_DRAFTS)),
            )
        )
        bench = VerificationBench(worker, sizes, room)
        for batch in sizes.batches:
            plain: dict[str, Any] = {}
            for num_drafts in _NUM_DRAFTS:
                name = f"verify {batch}x{1 + num_drafts}"
                if context.report.has_time(name, _CASE_SECONDS if context.is_real else 0.0):
                    line = bench.measure(context.device, batch, num_drafts)
                    plain = plain or line
                    line |= _ratios(line, plain)
                    context.report.add(name, line, _describe(line))
    del worker, bench
    gc.collect()  # frees memory for the next part of this process
    if context.is_real:
        torch.cuda.empty_cache()


class VerificationBench:
    """One worker whose sequences grow from case to case."""

    def __init__(self, worker: Worker, sizes: Sizes, room: int) -> None:
        self._worker = worker
        self._sizes = sizes
        self._plans = Plans(worker.info, sizes.context, room)
        count = max(sizes.batches)
        self._num_known: IntArray = np.full(count, sizes.context + 1, dtype=np.int32)
        for plan in self._plans.prefills(count, sizes.chunk):
            if error := worker.execute(plan).error:
                raise RuntimeError(error)

    def measure(self, device: torch.device, batch: int, num_drafts: int) -> dict[str, Any]:
        for _ in range(2):
            self._steps(_WARM_UP, batch, num_drafts)
            while self._worker.tune(between_steps=True):
                pass
        seconds = self._steps(self._sizes.timed, batch, num_drafts)
        with traced(device) as trace:
            self._steps(self._sizes.traced, batch, num_drafts)
        busy_ms = trace.span_ms * (1 - trace.idle_share) / self._sizes.traced
        return {
            "step_ms": round(1e3 * median(seconds), 3),
            "device_ms": round(busy_ms, 3),
            "traced": trace.record(),
        }

    def _steps(self, count: int, batch: int, num_drafts: int) -> list[float]:
        """Returns the seconds of each step, from the plan to the tokens."""
        seconds = []
        for _ in range(count):
            plan = self._plans.verify(num_drafts, self._num_known[:batch])
            begun = time.perf_counter()
            output = self._worker.execute(plan)
            seconds.append(time.perf_counter() - begun)
            if output.error or output.num_drafts.sum() != batch * num_drafts:
                raise RuntimeError(output.error or "not all drafts were verified")
            self._num_known[:batch] += output.num_tokens if output.num_tokens.size else 1
        return seconds


def _ratios(line: dict[str, Any], plain: dict[str, Any]) -> dict[str, float]:
    """Returns ratios to the step without drafts; device ratios if there is a device."""
    return {
        name: round(line[key] / plain[key], 3)
        for name, key in (("ratio", "step_ms"), ("device_ratio", "device_ms"))
        if plain[key]
    }


def _describe(line: dict[str, Any]) -> str:
    return (
        f"{line['step_ms']:9.3f} ms, {line['ratio']:.2f} times a single token's; device "
        f"{line['device_ms']:.3f} ms, idle {line['traced']['idle_share']:.1%}"
    )
