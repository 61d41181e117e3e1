"""Milliseconds per worker step under other load, by thread pool.

    python -m bench.worker.threads [--model demo] [--rounds 5] [--save]

Compares the CPU kernels' own pool with torch's threads, which wait by OpenMP's default policy or
sleep at once. Each variant is its own process. They alternate, first without other load, then with
one spinning process per core.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from bench import record
from bench.worker.step import join, timed_steps
from taco_demo.locate import find_model
from taco_proto.config import ModelConfig, WorkerConfig
from taco_proto.sampling_params import SamplingParams
from taco_worker.backends.cpu.kernel_startup import start_cpu_kernels
from taco_worker.worker import Worker

MAX_NUM_SEQS = 32
GREEDY = SamplingParams(temperature=0.0)
# OpenMP's default is neither of its two policies: it spins for some milliseconds, then sleeps.
VARIANTS: dict[str, dict[str, Any]] = {
    "kernels, all cores": {"kernels": True},
    "kernels, one thread": {"kernels": True, "num_threads": 1},
    "torch, all cores, default": {"kernels": False},
    "torch, all cores, passive": {"kernels": False, "wait_policy": "PASSIVE"},
}
WORK = ("decode of 1", "decode of 32", "prefill of 512")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", default="demo", help="a bundled model or a directory (default %(default)s)"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds of each load (default %(default)s)"
    )
    parser.add_argument("--save", action="store_true", help="write the figures to bench/results/")
    parser.add_argument("--variant", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    record.check_savable(parser, args, "model")
    model = str(find_model(args.model) or args.model)
    if args.variant is not None:
        answer_requests(model, **args.variant)
        return

    with contextlib.ExitStack() as stack:
        processes = {
            name: stack.enter_context(start_variant(model, **how)) for name, how in VARIANTS.items()
        }
        figures = {"alone": compare(processes, args.rounds)}
        num_cores = len(os.sched_getaffinity(0))
        for _ in range(num_cores):
            stack.enter_context(spinner())
        figures[f"beside {num_cores} spinning processes"] = compare(processes, args.rounds)
    print(json.dumps(figures, indent=2))
    if args.save:
        record.save("worker_threads", {"milliseconds_per_step": figures})


def compare(processes: dict[str, subprocess.Popen[str]], rounds: int) -> dict[str, dict[str, Any]]:
    """Returns the median over the rounds of each round's mean; a mean shows stalled steps."""
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for round_number in range(rounds):
        order = list(processes)
        for work in WORK:
            for name in order if round_number % 2 else reversed(order):
                times[work, name].append(ask(processes[name], work))
    return {
        work: {name: round(1e3 * statistics.median(times[work, name]), 2) for name in processes}
        for work in WORK
    }


@contextlib.contextmanager
def start_variant(
    model: str, *, kernels: bool, wait_policy: str | None = None, num_threads: int | None = None
) -> Iterator[subprocess.Popen[str]]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OMP_", "GOMP_", "KMP_"))
    }
    if wait_policy is not None:
        environment["OMP_WAIT_POLICY"] = wait_policy
    options = json.dumps({"kernels": kernels, "num_threads": num_threads})
    with subprocess.Popen(
        [sys.executable, "-m", "bench.worker.threads", "--model", model, "--variant", options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        for work in WORK:
            ask(process, work)  # warm
        yield process  # it exits when its input ends


@contextlib.contextmanager
def spinner() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


def ask(process: subprocess.Popen[str], work: str) -> float:
    """Returns the seconds per step."""
    assert process.stdin is not None
    assert process.stdout is not None
    print(work, file=process.stdin, flush=True)
    return float(process.stdout.readline())


def answer_requests(model: str, kernels: bool, num_threads: int | None) -> None:
    """Reads kinds of work from standard input and writes their seconds per step."""
    worker = Worker(
        WorkerConfig(
            model=ModelConfig(model=model),
            num_blocks=2048,
            max_num_seqs=MAX_NUM_SEQS,
            num_threads=num_threads,
        ),
        start_kernels=start_cpu_kernels if kernels else lambda _: None,
    )
    for line in sys.stdin:
        print(np.mean(timed_work(worker, line.strip())), flush=True)


def timed_work(worker: Worker, work: str) -> list[float]:
    """Returns the seconds of each step."""
    kind, size = work.split(" of ")
    if kind == "prefill":
        return [join(worker, 1, int(size), GREEDY) for _ in range(4)]
    join(worker, int(size), 40, GREEDY)
    return timed_steps(worker, int(size), num_steps=30)


if __name__ == "__main__":
    main()
