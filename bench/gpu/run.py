"""Runs every GPU benchmark, in three commands of ten minutes.

    bench/gpu/run.sh --call 1|2|3 [--minutes 9.5] [--only machine attention …] [--device cpu]

Runs correctness tests first, then kernels, then a whole model. Each part is a process with a
time limit and writes its own file of figures under $OUT, or under bench/results/gpu/ if OUT is
not set. The last output is a table with the goals.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from bench.gpu.harness import processes, requirements, table
from bench.gpu.harness.report import DONE

RESULTS = Path(__file__).parents[1] / "results" / "gpu"


def main(arguments: Sequence[str] | None = None) -> None:
    args = _parse_args(arguments)
    folder = args.folder or _default_folder(args.device)
    if args.part is not None:
        run_part(args.part, args.device, folder, args.seconds)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("run: terminated"))
    missing = requirements.missing()
    if missing:
        print(requirements.advice(missing), flush=True)
    try:
        chosen = processes.choose(args.only, args.call)
    except ValueError as error:
        sys.exit(f"run: {error}")
    needs_prebuild = args.device == "cuda" and any(part.name == "attention" for part in chosen)
    with _prebuilding() if needs_prebuild else nullcontext():
        statuses = _run_parts(chosen, args, folder)
    print(f"-- records in {folder}")
    print(table.render(folder))
    if missing:
        print(requirements.advice(missing))
    sys.exit(any(status != DONE for status in statuses))


def _run_parts(
    chosen: Sequence[processes.Part], args: argparse.Namespace, folder: Path
) -> list[str]:
    """Runs the parts one after the other; returns their statuses."""
    begun = time.monotonic()
    elapsed: list[float] = []
    statuses: list[str] = []
    allowed = processes.limits(chosen, 60 * args.minutes, elapsed)
    for part in chosen:
        elapsed.append(time.monotonic() - begun)
        limit = next(allowed)
        print(f"-- {part.name}: {part.about}, at most {limit:.0f} s", flush=True)
        command = _command(part.name, args.device, folder, limit)
        status = processes.run(part.name, command, limit, folder)
        if status == processes.NO_DEVICE:
            sys.exit("run: no GPU that torch can use; --device cpu tries the scripts without one")
        statuses.append(status)
    print(f"-- {time.monotonic() - begun:.0f} s")
    return statuses


def run_part(name: str, device: str, folder: Path, seconds: float) -> None:
    """Measures one part in this process; its record in `folder` is complete after every figure."""
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch reads it
        from support import triton_interpreter

        triton_interpreter.install()
    from bench.gpu.harness.context import open_context  # the run itself needs no torch

    with open_context(name, device, folder, seconds) as context:
        importlib.import_module(f"bench.gpu.parts.{name}").measure(context)


@contextmanager
def _prebuilding() -> Iterator[None]:
    """Compiles flashinfer in the background, which takes minutes, while the first parts run. The
    process is killed when the run ends, also if it fails.
    """
    command = [sys.executable, "-m", "bench.gpu.harness.prebuild"]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        yield
    finally:
        processes.kill(process)


def _default_folder(device: str) -> Path:
    """Keeps figures that were not measured on a GPU out of the results folder."""
    if folder := os.environ.get("OUT"):
        return Path(folder)
    return RESULTS if device == "cuda" else Path(tempfile.mkdtemp(prefix="taco-gpu-trial-"))


def _command(part: str, device: str, folder: Path, limit: float) -> list[str]:
    seconds = max(1.0, limit - processes.END_SECONDS)
    return [
        *(sys.executable, "-m", "bench.gpu.run", "--part", part, "--device", device),
        *("--folder", str(folder), "--seconds", f"{seconds:.1f}"),
    ]


def _parse_args(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="run.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [part.name for part in processes.PARTS]
    parser.add_argument(
        "--minutes", type=float, default=9.5, help="time limit of all parts together"
    )
    calls = range(1, processes.NUM_CALLS + 1)
    parser.add_argument("--call", type=int, choices=calls, help="run only the parts of this call")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help=", ".join(names))
    parser.add_argument(
        "--device",
        choices=("cuda", "cpu"),
        default="cuda",
        help="cpu tries the scripts themselves: tiny shapes, kernels interpreted",
    )
    # Arguments that a run passes to its parts.
    parser.add_argument("--part", choices=names, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help="folder of the records, instead of OUT")
    parser.add_argument("--seconds", type=float, default=60.0, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
