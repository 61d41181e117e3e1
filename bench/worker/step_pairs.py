"""Worker steps of this checkout, compared with those of another one in alternating pairs.

    git worktree add ../base COMMIT
    python -m bench.worker.step_pairs ../base [--shape qwen2-0.5b] [--quantization int8]
        [--kv-cache-dtype int8] [--rounds 10] [--save]

Each checkout loads the same random model in a separate process. They take turns, and the one that
is first changes with each round. A ratio below 1 means that this checkout is faster. The kernels of
the other checkout are compiled first. $TACO_CPU_ISA chooses the instruction set of both.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

from bench import record
from bench.interval import ratio_interval
from bench.model_flags import add_kv_cache_dtype_flag, make_model_parser

THIS = Path(__file__).parents[2]
ROUNDS_SCRIPT = Path(__file__).with_name("step_rounds.py")
PACKAGE_DIRS = ("proto", "common", "kernels", "worker", "taco_llm")
Times = Mapping[str, float]


def main() -> None:
    parser = make_model_parser(__doc__)
    parser.add_argument("base", type=Path, help="a checkout of the commit to compare with")
    add_kv_cache_dtype_flag(parser)
    parser.add_argument(
        "--rounds", type=int, default=10, help="pairs, at least 2 (default %(default)s)"
    )
    parser.add_argument("--save", action="store_true", help="write the figures to bench/results/")
    args = parser.parse_args()
    record.check_savable(parser, args, "kv_cache_dtype")
    if args.rounds < 2:
        parser.error("--rounds: an interval needs at least two pairs")
    base = args.base.resolve()
    if not (base / "bench" / "worker" / "cpu_step.py").exists():
        parser.error(f"{args.base} is no checkout with bench/worker/cpu_step.py")
    commit = commit_of(base)
    build = [sys.executable, "-m", "taco_kernels.build"]
    subprocess.run(build, env=environment(base), cwd=base, check=True)
    flags = ["--shape", args.shape, "--kv-cache-dtype", args.kv_cache_dtype]
    if args.quantization:
        flags += ["--quantization", args.quantization]
    with ExitStack() as stack:
        ours = stack.enter_context(steps_of(THIS, flags))
        theirs = stack.enter_context(steps_of(base, flags))
        steps = compare(take_turns(ours, theirs, args.rounds))
    if args.save:
        name = "step_pairs" if args.shape == "qwen2-0.5b" else f"step_pairs_{args.shape}"
        suffix = f"_{args.quantization}" if args.quantization else ""
        record.save_by_isa(f"{name}{suffix}", {"base": commit, "steps": steps})


def commit_of(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def environment(checkout: Path) -> dict[str, str]:
    """With the packages of a checkout before those that are installed."""
    folders = [checkout, *(checkout / name for name in PACKAGE_DIRS)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}


@contextmanager
def steps_of(checkout: Path, flags: Sequence[str]) -> Iterator["subprocess.Popen[str]"]:
    """A process that times the steps of a checkout, after a first round."""
    with subprocess.Popen(
        # -P: `bench` is that of the checkout, not of the script's folder.
        [sys.executable, "-P", str(ROUNDS_SCRIPT), *flags],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(checkout),
        cwd=checkout,
    ) as process:
        read_times(process)
        yield process  # it ends when its input is closed


def time_round(process: "subprocess.Popen[str]") -> Times:
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()
    return read_times(process)


def read_times(process: "subprocess.Popen[str]") -> Times:
    """Raises `RuntimeError`: the process has failed."""
    assert process.stdout
    answer = process.stdout.readline()
    if not answer:
        raise RuntimeError(f"the steps failed with exit code {process.wait()}")
    times: Times = json.loads(answer)
    return times


def take_turns(
    ours: "subprocess.Popen[str]", theirs: "subprocess.Popen[str]", num_rounds: int
) -> list[tuple[Times, Times]]:
    """Returns our and their times of each round."""
    pairs = []
    for index in range(num_rounds):
        if index % 2:
            our = time_round(ours)
            pairs.append((our, time_round(theirs)))
        else:
            their = time_round(theirs)
            pairs.append((time_round(ours), their))
    return pairs


def compare(pairs: Sequence[tuple[Times, Times]]) -> dict[str, dict[str, float]]:
    """Prints and returns the median milliseconds of both, and the ratio with its interval."""
    figures = {}
    for step in pairs[0][0]:
        ours = [our[step] for our, _ in pairs]
        theirs = [their[step] for _, their in pairs]
        found = {
            "ms": statistics.median(ours),
            "base_ms": statistics.median(theirs),
            **asdict(ratio_interval(ours, theirs)),
        }
        figures[step] = {name: round(value, 3) for name, value in found.items()}
        print(f"{step:20} ", "  ".join(f"{k} {v}" for k, v in figures[step].items()), flush=True)
    return figures


if __name__ == "__main__":
    main()
