"""Paged attention with the heads of Llama-3-8B, beside its limits and other kernels.

A decode's share is the bandwidth of reading its KV once, relative to the measured copy
bandwidth. Every output is poisoned first and compared with plain attention in float32.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from bench.gpu.harness.context import Context
from bench.gpu.harness.timing import Call, Timing, time_calls
from bench.gpu.parts.attention_inputs import (
    LLAMA_8B,
    Case,
    Heads,
    PagedInputs,
    make_inputs,
    relative_error,
)
from bench.gpu.parts.attention_peers import PEERS
from bench.gpu.parts.machine import Ceilings, load_ceilings
from taco_kernels.attention_options import AttentionOptions
from taco_kernels.triton.attention import paged_attention

_TINY = Heads(4, 2, 64)
_TRIALS = (
    *(Case(2, 40), Case(1, 24, 24), Case(1, 40, 8)),
    *(Case(2, 20, beside=Case(1, 70)), Case(2, 20, beside=Case(1, 40, 24)), Case(2, 40, 3)),
    Case(2, 40, is_fp8=True),
)
_KILO = 1024
# Shapes with a goal come first, because late cases may run out of time.
_GOAL_CASES = (
    *(Case(batch, 8 * _KILO) for batch in (1, 32, 128)),
    *(Case(batch, _KILO) for batch in (1, 32, 128, 256)),
    Case(1, 8 * _KILO, 8 * _KILO),
)
_CASES = (
    # Cases of serving: one long sequence among short ones, prompts beside decodes, drafts, fp8.
    Case(127, _KILO, beside=Case(1, 32 * _KILO)),
    Case(32, _KILO, beside=Case(1, 2 * _KILO, 512)),
    Case(127, _KILO, beside=Case(1, 8 * _KILO, 2 * _KILO)),
    *(Case(32, _KILO, new) for new in (5, 9)),
    *(Case(batch, 8 * _KILO, is_fp8=True) for batch in (1, 32)),
    *(Case(1, _KILO, _KILO), Case(8, _KILO, _KILO)),
    *(Case(batch, 32 * _KILO) for batch in (1, 32)),
    Case(1, 8 * _KILO, 2 * _KILO),
    *(Case(256, 8 * _KILO), Case(128, 32 * _KILO), Case(256, 32 * _KILO)),
)
_QUICK_PEERS = ("sdpa_flash", "sdpa_cudnn", "xformers")
# Compiling takes ten seconds and more: flashinfer twice, FlexAttention for each shape.
_SLOW_PEERS = {
    "flashinfer": (*_GOAL_CASES, Case(8, _KILO, _KILO), *_CASES[:3]),
    "flex": (_GOAL_CASES[5], _GOAL_CASES[7]),
}
_CASE_SECONDS, _SLOW_SECONDS = 6.0, 20.0
# Limit of a right result: bfloat16 operands give 1e-3 to 1e-2.
_MAX_ERROR = 2e-2


def measure(context: Context) -> None:
    report, ceilings = context.report, load_ceilings(context)
    report.add("heads", asdict(_heads(context)))
    _measure_cases(context, _GOAL_CASES if context.is_real else _TRIALS, ceilings)
    _measure_slow_peers(context, ceilings)
    _measure_cases(context, _CASES if context.is_real else (), ceilings)


def _measure_cases(context: Context, cases: Sequence[Case], ceilings: Ceilings) -> None:
    report = context.report
    for case in cases:
        if report.has_time(case.name, _CASE_SECONDS) and _has_memory(context, case):
            try:
                line = _measure_case(context, case, ceilings)
            except Exception as error:  # for example a compile error; other cases continue
                report.leave_out(case.name, error)
                continue
            report.add(case.name, line, _describe(line))


def _measure_slow_peers(context: Context, ceilings: Ceilings) -> None:
    report = context.report
    for name, cases in _SLOW_PEERS.items():
        if importlib.util.find_spec(name) is None and name != "flex":
            report.leave_out(name, "not installed")
            continue
        for case in cases if context.is_real else _TRIALS[:1]:
            text = f"{name}: {case.name}"
            if report.has_time(text, _SLOW_SECONDS) and _has_memory(context, case):
                inputs = make_inputs(context, case, _heads(context))
                line = _measure_peer(context, name, inputs, ceilings)
                report.add(text, line, f"{line['us']:9.1f} us" if "us" in line else line["reason"])


def _has_memory(context: Context, case: Case) -> bool:
    """Whether a case's KV fits in memory; otherwise records it as left out."""
    num_bytes = case.kv_bytes(_heads(context), context.dtype.itemsize)
    if not context.is_real or num_bytes < 0.8 * context.free_bytes():
        return True
    context.report.leave_out(case.name, f"no memory for {num_bytes / 2**30:.1f} GiB of KV")
    return False


def _heads(context: Context) -> Heads:
    return LLAMA_8B if context.is_real else _TINY


def _measure_case(context: Context, case: Case, ceilings: Ceilings) -> dict[str, Any]:
    heads = _heads(context)
    inputs = make_inputs(context, case, heads)
    inputs.out.fill_(math.nan)
    calls = paged_calls(inputs)
    calls[0]()
    error = relative_error(inputs, 0, inputs.out)
    line = rates(case, heads, time_calls(calls, context.device), ceilings)
    line |= {"error": f"{error:.1e}", "right": error < _MAX_ERROR}
    for name in _QUICK_PEERS:
        line[name] = _measure_peer(context, name, inputs, ceilings)
    return line


def paged_calls(inputs: PagedInputs, **options: Any) -> Sequence[Call]:
    """Returns one call of TACO's kernel per layer."""

    def layer(index: int) -> Call:
        keys, values = inputs.caches(index)
        return lambda: paged_attention(
            *(inputs.queries[index], keys, values, inputs.batch),
            AttentionOptions(inputs.scale),
            out=inputs.out,
            **options,
        )

    return [layer(index) for index in range(len(inputs.queries))]


def rates(case: Case, heads: Heads, timing: Timing, ceilings: Ceilings) -> dict[str, Any]:
    num_bytes = case.kv_bytes(heads, 2)
    gb_per_s, tflops = num_bytes / timing.us / 1e3, case.operations(heads) / timing.us / 1e6
    return timing.record() | {
        "kv_mb": round(num_bytes / 1e6, 1),
        "gb_per_s": round(gb_per_s, 1),
        "copy_share": round(gb_per_s / ceilings.copy_gb_per_s, 3),
        "tflops": round(tflops, 1),
    }


def _measure_peer(
    context: Context, name: str, inputs: PagedInputs, ceilings: Ceilings
) -> dict[str, Any]:
    """Returns a peer's figures, or the `reason` why it has no figures."""
    case = inputs.case
    if obstacle := _obstacle(context, name, inputs):
        return {"reason": obstacle}
    try:
        peer = PEERS[name](inputs)
        error = relative_error(inputs, 0, peer.rows(peer.calls[0]()))
        line = rates(case, inputs.heads, time_calls(peer.calls, context.device), ceilings)
        return line | {"error": f"{error:.1e}"}
    except Exception as error:  # an error of another library does not stop the run
        return {"reason": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    finally:
        if name == "flex":
            torch.compiler.reset()


def _obstacle(context: Context, name: str, inputs: PagedInputs) -> str:
    """Returns why a peer cannot run; empty if it can."""
    case = inputs.case
    if name == "xformers" and importlib.util.find_spec(name) is None:
        return "not installed"
    if name == "flashinfer":
        return "no fp8 here" if case.is_fp8 else ""
    if not case.is_uniform or case.is_fp8 or case.new not in (1, case.context):
        return "no such mask"
    # Gathering keys and values needs one extra copy.
    if context.is_real and 1.6 * inputs.kv.nbytes > context.free_bytes():
        return "no memory for KV in one piece"
    return ""


def _describe(line: dict[str, Any]) -> str:
    text = (
        f"{line['us']:10.1f} us  {line['copy_share']:6.1%} of copy  {line['tflops']:6.1f} TFLOP/s"
    )
    text += "" if line["right"] else f"  WRONG, error {line['error']}"
    others = {name: line[name]["us"] for name in _QUICK_PEERS if "us" in line[name]}
    return text + "".join(f"  {name} {us:.1f}" for name, us in others.items())
