"""Paged attention by tile size and number of splits: whether the chosen plan is the best.

Measures tile sizes with the plan's splits, then splits with the best tile size. Variants are
compiled first, by processes that launch nothing and end before any timing.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from bench.gpu.harness.compile_only import compile_only
from bench.gpu.harness.context import Context, Device
from bench.gpu.harness.timing import time_calls
from bench.gpu.parts.attention import paged_calls
from bench.gpu.parts.attention_inputs import LLAMA_8B, Case, Heads, PagedInputs, make_inputs
from taco_kernels.triton.attention_plan import (
    AttentionPass,
    AttentionPlan,
    Tiling,
    plan_attention,
)

_KILO = 1024
_TINY = Heads(4, 2, 64)
_DECODES = tuple(
    Case(batch, length * _KILO) for batch, length in ((1, 8), (128, 1), (32, 1), (32, 8), (1, 32))
)
_PREFILLS = (Case(1, 8 * _KILO, 8 * _KILO), Case(8, _KILO, _KILO))
_TRIALS = (Case(2, 40), Case(1, 40, 40))
_SPLITS = (1, 2, 4, 8, 16, 32, 64)
_SAMPLING_MS = 30.0
_CASE_SECONDS = 5.0
# Compiling takes seconds per tile size, in one host thread.
_COMPILE_SHARE = 0.4  # maximum share of the part's time


@dataclass(frozen=True, slots=True)
class Option:
    """Parameters of a plan; None is the plan's own choice."""

    tiling: Tiling | None = None
    num_splits: int | None = None

    def record(self) -> dict[str, Any]:
        tiling = {} if self.tiling is None else asdict(self.tiling)
        return tiling | {"num_splits": self.num_splits}

    def __str__(self) -> str:
        tiling, splits = self.tiling, f"{self.num_splits or 'own'} splits"
        if tiling is None:
            return f"own tiling, {splits}"
        sides = f"{tiling.block_m}x{tiling.block_n}"
        return f"{sides}, {tiling.num_warps} warps, {tiling.num_stages} stages, {splits}"


def measure(context: Context) -> None:
    heads = LLAMA_8B if context.is_real else _TINY
    cases = (*_PREFILLS, *_DECODES) if context.is_real else _TRIALS
    if context.is_real:
        _compile_all(cases, _COMPILE_SHARE * context.report.seconds_left)
    for case in cases:
        if context.report.has_time(
            f"sweep, {case.name}", _CASE_SECONDS if context.is_real else 0.0
        ):
            num_layers = None if context.is_real else 1
            _sweep(context, make_inputs(context, case, heads, num_layers))


def tilings(chosen: Tiling, case: Case) -> Iterator[Tiling]:
    """Returns tile sizes near the plan's choice."""
    if case.new == 1:
        sides = itertools.product((chosen.block_m,), (32, 64, 128), (4, 8), (2, 3, 4))
    else:
        sides = itertools.product((64, 128), (64, 128), (4, 8), (2, 3))
    for block_m, block_n, num_warps, num_stages in sides:
        yield replace(
            chosen, block_m=block_m, block_n=block_n, num_warps=num_warps, num_stages=num_stages
        )


def make_plan(device: Device, inputs: PagedInputs, option: Option) -> AttentionPlan:
    case, heads, itemsize = inputs.case, inputs.heads, inputs.out.dtype.itemsize
    return plan_attention(
        num_tokens=case.num_tokens,
        num_seqs=case.batch,
        max_query_len=case.new,
        max_seq_len=case.context,
        num_heads=heads.query,
        num_kv_heads=heads.kv,
        key_dim=heads.dim,
        value_dim=heads.dim,
        kv_bytes=itemsize,
        query_bytes=itemsize,
        num_sms=device.num_sms,
        few_rows=option.tiling if case.new == 1 else None,
        many_rows=option.tiling if case.new > 1 else None,
        num_splits=option.num_splits,
    )


def _sweep(context: Context, inputs: PagedInputs) -> None:
    case, own_plan = inputs.case, make_plan(context, inputs, Option())
    own_pass = _pass_of(own_plan, case)
    every = [Option(tiling) for tiling in tilings(own_pass.tiling, case)]
    options = every if context.is_real else every[:1]
    found = {Option(): _time(context, inputs, Option())}
    for option in options:
        found[option] = _time(context, inputs, option)
    best = min(found, key=found.__getitem__)
    for num_splits in _SPLITS if context.is_real else _SPLITS[1:2]:
        option = replace(best, num_splits=num_splits)
        found[option] = _time(context, inputs, option)
    best = min(found, key=found.__getitem__)
    own = found[Option()]
    figures = {
        "own_us": round(own, 2),
        "own": Option(own_pass.tiling, own_pass.num_splits).record(),
        "best_us": round(found[best], 2),
        "best": best.record(),
        "all": [
            option.record() | {"us": round(us, 2)}
            for option, us in sorted(found.items(), key=lambda item: item[1])
            if us < float("inf")
        ],
    }
    line = f"own {own:9.1f} us, best {found[best]:9.1f} us: {best}"
    context.report.add(f"sweep, {case.name}", figures, line)


def _time(context: Context, inputs: PagedInputs, option: Option) -> float:
    """Returns microseconds; infinite if the device cannot run the variant."""
    plan = make_plan(context, inputs, option)
    try:
        calls = paged_calls(inputs, plan=plan)
        return time_calls(calls, context.device, sampling_ms=_SAMPLING_MS).us
    except Exception as error:  # too much shared memory or registers raises several types
        if context.is_real:
            torch.cuda.synchronize()
        print(f"sweep: {option}: {type(error).__name__}", flush=True)
        return float("inf")


def _pass_of(plan: AttentionPlan, case: Case) -> AttentionPass:
    """Returns the pass that computes the case's rows: a mixed batch has another pass for
    decodes.
    """
    return plan.passes[0 if case.new == 1 else -1]


def _compile_all(cases: Sequence[Case], seconds: float) -> None:
    """Fills Triton's disk cache on all cores; variants that are not done in time are compiled
    later.
    """
    spawn = multiprocessing.get_context("spawn")
    count = max(1, (os.cpu_count() or 1) - 2)
    compilers = [
        spawn.Process(target=_compile_share, args=(cases, share, count)) for share in range(count)
    ]
    for compiler in compilers:
        compiler.start()
    end = time.monotonic() + seconds
    for compiler in compilers:
        compiler.join(max(0.0, end - time.monotonic()))
    for compiler in compilers:
        compiler.kill()
        compiler.join()
        compiler.close()


def _compile_share(cases: Sequence[Case], share: int, count: int) -> None:
    device = Device(torch.device("cuda"))
    for case in cases:
        inputs = make_inputs(device, case, LLAMA_8B, num_layers=1)
        own_tiling = _pass_of(make_plan(device, inputs, Option()), case).tiling
        for tiling in [*tilings(own_tiling, case)][share::count]:
            plan = make_plan(device, inputs, Option(tiling))
            with suppress(Exception), compile_only():  # the measurement reports the error
                paged_calls(inputs, plan=plan)[0]()
