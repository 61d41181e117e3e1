"""Runs engines alternately on one workload in one run, and collects their figures."""

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from bench.peers.driver import Report
from bench.peers.engine_process import EngineProcess, EngineSpec
from bench.peers.workloads import FIRST_TOKEN, MEMORY, WARM_UP, Request, Workload

REHEARSED_TOKENS = 8
REHEARSAL_ROUND = -1

# One figure's values by engine; values at the same index are of the same round.
Values = dict[str, list[float]]
# Called with a line about each measurement.
Say = Callable[[str], None]


@contextlib.contextmanager
def warm_engines(specs: Sequence[EngineSpec], say: Say) -> Iterator[list[EngineProcess]]:
    """Starts all engines: ready, warm, and suspended between turns if they spin when idle."""
    with contextlib.ExitStack() as stack:
        engines = []
        for spec in specs:
            engine = stack.enter_context(EngineProcess(spec))
            for workload in WARM_UP:
                engine.run(workload.requests())
            engine.measure_idle()
            engine.pause()
            note = " (spins: stopped between its turns)" if engine.spins else ""
            say(f"{spec.name}: {engine.version} is ready{note}")
            engines.append(engine)
        yield engines


def take_turns(
    engines: Sequence[EngineProcess], workload: Workload, num_rounds: int, say: Say
) -> dict[str, Values]:
    """Returns the workload's figures by figure and engine; each round reverses the order.

    A turn of one request begins with another one. After the turns of others an engine's first
    step takes up to twice as long, and the order decides which engine has had the turn before.
    """
    rehearsal = _shortened(workload.requests(REHEARSAL_ROUND))
    for engine in engines:
        _run(engine, rehearsal)
    before_each = [rehearsal] if len(rehearsal) == 1 else []
    values: dict[str, Values] = {figure: defaultdict(list) for figure in workload.figures}
    for round_number in range(num_rounds):
        requests = workload.requests(round_number)
        for engine in engines if round_number % 2 == 0 else reversed(engines):
            figures = figures_of(_run(engine, *before_each, requests))
            for figure in workload.figures:
                values[figure][engine.spec.name].append(figures[figure])
            shown = ", ".join(f"{figure} {figures[figure]:.4g}" for figure in workload.figures)
            say(f"{workload.name}, round {round_number}: {engine.spec.name}: {shown}")
    return values


def figures_of(report: Report) -> dict[str, float]:
    """Returns `ttft_ms` and `tpot_ms` of the first request, `seconds`, and output
    `tokens_per_s`.
    """
    stream = report.times[0]
    num_tokens = sum(times.num_tokens for times in report.times)
    return {
        "ttft_ms": 1e3 * stream.first_token,
        "tpot_ms": 1e3 * (stream.last_token - stream.first_token) / max(1, stream.num_tokens - 1),
        "seconds": report.seconds,
        "tokens_per_s": num_tokens / report.seconds,
    }


def start_seconds(specs: Sequence[EngineSpec], num_rounds: int, say: Say) -> Values:
    """Seconds from an engine's command to its first token, by engine.

    A start that is not timed brings the files into the page cache and compiles Python's modules.
    """
    for spec in specs:
        _start(spec)
    values: Values = defaultdict(list)
    for round_number in range(num_rounds):
        for spec in specs if round_number % 2 == 0 else reversed(specs):
            seconds = _start(spec)
            values[spec.name].append(seconds)
            say(f"start, round {round_number}: {spec.name}: {seconds:.2f} s")
    return values


def _start(spec: EngineSpec) -> float:
    """Returns the seconds to the first token."""
    started = time.perf_counter()
    with EngineProcess(spec) as engine:
        engine.run(FIRST_TOKEN.requests())
        return time.perf_counter() - started


def peak_memory_bytes(specs: Sequence[EngineSpec], say: Say) -> Values:
    """Largest resident size of an engine's processes while 64 long sequences run at once."""
    values: Values = defaultdict(list)
    for spec in specs:
        with EngineProcess(spec) as engine:
            engine.run(WARM_UP[0].requests())
            engine.tree.reset_peak_memory()
            engine.run(MEMORY.requests())
            peak = engine.tree.peak_memory_bytes()
        values[spec.name].append(float(peak))
        say(f"memory: {spec.name}: {peak / 1e6:.0f} MB at the peak")
    return values


def _run(engine: EngineProcess, *runs: list[Request]) -> Report:
    """Runs requests one list after the other; returns the report of the last one."""
    engine.resume()
    try:
        reports = [engine.run(requests) for requests in runs]
        return reports[-1]
    finally:
        engine.pause()


def _shortened(requests: list[Request]) -> list[Request]:
    """Returns the same prompts with a few decode steps: enough to touch all memory once."""
    return [
        replace(request, num_output_tokens=min(REHEARSED_TOKENS, request.num_output_tokens))
        for request in requests
    ]
