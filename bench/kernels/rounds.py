"""Helpers of the CPU kernel benchmarks: alternating rounds, and shares of the machine's limits."""

import argparse
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

from bench.kernels import roofline
from bench.kernels.roofline import MemoryReader, Roofline
from taco_kernels.library import CpuKernels, load

Call = Callable[[], object]

IDLE_SECONDS = 0.005  # a thread that computes for a tenth of it is busy

DTYPES = {"bf16": torch.bfloat16, "int8": torch.int8, "fp32": torch.float32}


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of this machine with all threads.

    Attributes:
        read: measures the bytes per second that memory gives now. On a shared machine this changes
            by the minute.
        peak: operations per second.
    """

    read: Callable[[], float]
    peak: float

    @classmethod
    def of(cls, roof: Roofline, peak: str) -> "Limits":
        """Returns the limits for `peak`, the roofline's name of a kernel's instructions."""
        read = partial(memory_reader().bytes_per_second, roof.threads)
        return cls(read, roof.peak_gops[peak]["all_threads"] * 1e9)


@cache
def memory_reader() -> MemoryReader:
    """The reader of this process. Raises `CompilerError`."""
    return MemoryReader()


def make_parser(description: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """Returns a parser of the flags that these benchmarks share; `rounds` is a default."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_threads_flag(parser)
    parser.add_argument(
        "--rounds",
        type=int,
        default=rounds,
        help="rounds of each measurement (default %(default)s)",
    )
    parser.add_argument("--save", action="store_true", help="write the figures to bench/results/")
    return parser


def add_threads_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threads",
        type=int,
        default=torch.get_num_threads(),
        help="threads of the kernels (default as torch, here %(default)s)",
    )


def add_shape_flags(
    parser: argparse.ArgumentParser, models: Iterable[str], *, types_of: str
) -> None:
    """Adds `--model` and `--type`, which choose what is measured; None: all."""
    parser.add_argument(
        "--model",
        choices=[*models],
        action="append",
        help="shapes to measure; may be repeated (default all)",
    )
    parser.add_argument(
        "--type",
        choices=DTYPES,
        action="append",
        help=f"types of the {types_of}; may be repeated (default all)",
    )


def show(figures: Mapping[str, object]) -> None:
    """Prints a line of figures."""
    print("  ".join(f"{key} {value}" for key, value in figures.items()), flush=True)


def load_kernels(threads: int) -> CpuKernels:
    """Loads the kernels with each thread bound to a CPU that this process may use.

    If there are fewer CPUs than threads, threads are not bound.
    """
    cpus = sorted(os.sched_getaffinity(0))[:threads]
    return load(threads, cpus if len(cpus) == threads else None)


def load_and_measure_limits(threads: int) -> tuple[CpuKernels, Roofline, dict[str, Any]]:
    """Returns the kernels, the machine's limits, and both as the first figures of a record."""
    torch.set_num_threads(threads)
    kernels = load_kernels(threads)
    roof = roofline.measure(threads)
    figures = {
        "isa": kernels.isa,
        "threads": threads,
        "read_gb_per_s": roof.read_gb_per_s,
        "peak_gops": roof.peak_gops,
    }
    return kernels, roof, figures


def time_in_turn(
    ours: Sequence[Call],
    theirs: Sequence[Call],
    *,
    num_bytes: int,
    operations: int,
    limits: Limits,
    rounds: int,
    round_seconds: float,
    per_call: int = 1,
    other: str = "torch",
) -> dict[str, float]:
    """Times TACO's calls, the others and the read bandwidth in turn; returns each one's best round.

    The best round counts, because other load on the machine only adds time.

    Args:
        ours: the same call over different memory, so that its data is not cached; `theirs`
            likewise, and empty if there is nothing to compare with.
        num_bytes, operations: of one operation; the share is relative to their minimum time, the
            greater of the shares of the peak and of the read bandwidth.
        per_call: operations of each of TACO's calls; figures are those of one operation.
        other: name of `theirs`, whose time is the figure `<other>_us`.
    """
    for call in (*ours, *theirs):
        call()  # the first one touches memory that the others reuse
    wait_until_idle()
    best = best_other = float("inf")
    read = 0.0
    for _ in range(rounds):
        best = min(best, seconds_of(ours, round_seconds) / per_call)
        if theirs:
            best_other = min(best_other, seconds_of(theirs, round_seconds))
            wait_until_idle()
        read = max(read, limits.read())
    bound = max(num_bytes / read, operations / limits.peak)
    figures = {
        "us": round(best * 1e6, 1),
        "gb_per_s": round(num_bytes / best / 1e9, 1),
        "gops": round(operations / best / 1e9, 1),
        "share": round(bound / best, 3),
        "of_peak": round(operations / limits.peak / best, 3),
        "of_read": round(num_bytes / read / best, 3),
        "read_gb_per_s": round(read / 1e9, 1),
    }
    if theirs:
        figures[f"{other}_us"] = round(best_other * 1e6, 1)
    return figures


def wait_until_idle() -> None:
    """Waits until no thread of this process computes, for a second at most.

    torch's threads spin for about 10 ms after a call, on the cores that are measured next.
    """
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        used = time.process_time()
        time.sleep(IDLE_SECONDS)
        if time.process_time() - used < IDLE_SECONDS / 10:
            return


def seconds_of(calls: Sequence[Call], round_seconds: float) -> float:
    """Returns the seconds of one call, over as many calls in turn as the time limit allows."""
    num_calls = 0
    start = time.perf_counter()
    while (elapsed := time.perf_counter() - start) < round_seconds or not num_calls:
        calls[num_calls % len(calls)]()
        num_calls += 1
    return elapsed / num_calls
