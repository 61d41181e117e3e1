"""The machine's limits: memory bandwidth, and multiply-add rate with random numbers.

    python -m bench.kernels.roofline [--threads N] [--save]

Benchmarks of kernels import `measure` and print their share of these limits. The loops are C++
that is compiled here. Vectors multiply from registers, tiles from the first-level cache. Loops with
instructions that the CPU lacks are skipped.
"""

import argparse
import ctypes
import json
import math
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from bench import record

SOURCE = Path(__file__).with_suffix(".cpp")
# Larger than the caches of a core. A shared cache of some hundred MB would still affect it.
READ_BYTES = 1 << 30
# Ways to read: runs of memory that a thread reads side by side, and bytes that it prefetches ahead
# in each (0: only the machine prefetches). The best counts. Which it is differs between machines,
# and over time where a virtual machine shares its host: one run gives a half to all of the best.
READ_WAYS = ((1, 0), (1, 4096), (4, 0), (4, 1024))
REPEATS = 7
# Operations (a multiply-add is two) of one step of each loop; see roofline.cpp.
STEP_OPERATIONS = {
    "avx2_fp32": 2 * 12 * 8,
    "avx2_int8": 2 * 12 * 32,
    "avx512_fp32": 2 * 14 * 16,
    "avx512_bf16": 2 * 14 * 32,
    "avx512_vnni": 2 * 14 * 64,
    "amx_bf16": 2 * 4 * 16 * 16 * 32,
    "amx_int8": 2 * 4 * 16 * 16 * 64,
}
LOOP_SECONDS = 0.05


class CompilerError(RuntimeError):
    """There is no C++ compiler, or it rejected the source."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """Best figures of several runs.

    Attributes:
        threads: number of threads of `all_threads` below.
        read_gb_per_s: GB/s (10^9 bytes) with `one_thread` and `all_threads`.
        peak_gops: 10^9 operations per second, a multiply-add counted as two, by instruction set and
            number type; with one thread and with all.
    """

    threads: int
    read_gb_per_s: dict[str, float]
    peak_gops: dict[str, dict[str, float]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="threads that read and multiply (default the CPUs of this process, here %(default)s)",
    )
    parser.add_argument("--save", action="store_true", help="write the figures to bench/results/")
    args = parser.parse_args()
    try:
        figures = asdict(measure(args.threads))
    except CompilerError as error:
        sys.exit(f"roofline: {error}")
    print(json.dumps(figures, indent=2))
    if args.save:
        record.save_by_isa("roofline", figures)


def measure(threads: int) -> Roofline:
    """Measures the limits, which takes some seconds. Raises `CompilerError`."""
    loops = _compile()
    numbers = {"one_thread": 1, "all_threads": threads}
    reader = MemoryReader(loops)
    read = {
        name: round(reader.bytes_per_second(number, REPEATS) / 1e9, 2)
        for name, number in numbers.items()
    }
    peaks = {
        loop: {name: _peak(loops, loop, number) for name, number in numbers.items()}
        for loop in STEP_OPERATIONS
        if loops.roofline_has(loop.encode())
    }
    return Roofline(threads, read, peaks)


class MemoryReader:
    """Measures how fast memory is read. It has 1 GiB of memory."""

    def __init__(self, loops: ctypes.CDLL | None = None) -> None:
        """Raises `CompilerError`, unless the loops are compiled already."""
        self._loops = _compile() if loops is None else loops
        self._memory = mmap.mmap(-1, READ_BYTES)
        self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        # Untouched pages would all map to one page of zeros.
        ctypes.memset(self._address, 1, READ_BYTES)

    def bytes_per_second(self, threads: int, repeats: int = 1) -> float:
        """Returns the best rate; a repeat takes some hundredths of a second."""
        share = READ_BYTES // threads // 4096 * 4096

        def read(thread: int, streams: int, ahead: int) -> None:
            start = self._address + thread * share
            self._loops.roofline_read(start, share // streams, streams, ahead)

        best = min(
            _best_seconds(partial(read, streams=streams, ahead=ahead), threads, repeats)
            for streams, ahead in READ_WAYS
        )
        return threads * share / best


def _compile() -> ctypes.CDLL:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise CompilerError("no C++ compiler found; install g++ 11 or later, or set CXX")
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory) / "roofline.so"
        command = [
            compiler,
            "-std=c++17",
            "-O2",
            "-shared",
            "-fPIC",
            str(SOURCE),
            "-o",
            str(library),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CompilerError(f"{compiler} failed:\n{done.stderr}")
        loops = ctypes.CDLL(str(library))
    loops.roofline_has.argtypes = [ctypes.c_char_p]
    loops.roofline_read.argtypes = [ctypes.c_void_p] + [ctypes.c_size_t] * 3
    loops.roofline_read.restype = ctypes.c_int64
    for loop in STEP_OPERATIONS:
        getattr(loops, f"roofline_{loop}").argtypes = [ctypes.c_int64]
        getattr(loops, f"roofline_{loop}").restype = None
    return loops


def _peak(loops: ctypes.CDLL, loop: str, threads: int) -> float:
    call = getattr(loops, f"roofline_{loop}")
    trial_steps = 100_000
    seconds = _best_seconds(lambda _: call(trial_steps), 1, REPEATS)
    steps = math.ceil(trial_steps * LOOP_SECONDS / seconds)
    seconds = _best_seconds(lambda _: call(steps), threads, REPEATS)
    return round(threads * steps * STEP_OPERATIONS[loop] / seconds / 1e9, 1)


def _best_seconds(work: Callable[[int], None], threads: int, repeats: int) -> float:
    """Returns the best time until the last thread is done; each thread is pinned to a core."""
    return min(_seconds(work, threads) for _ in range(repeats))


def _seconds(work: Callable[[int], None], threads: int) -> float:
    cores = sorted(os.sched_getaffinity(0))
    barrier = threading.Barrier(threads)
    ended = [0.0] * threads
    started = [0.0] * threads

    def run(thread: int) -> None:
        os.sched_setaffinity(0, {cores[thread % len(cores)]})
        barrier.wait()
        started[thread] = time.perf_counter()
        work(thread)  # ctypes releases the GIL
        ended[thread] = time.perf_counter()

    workers = [threading.Thread(target=run, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return max(ended) - min(started)


if __name__ == "__main__":
    main()
