"""Training on one GPU that several ranks share: collectives beside a reference, then speed.

    bench/train/gpu.sh [--minutes 9.5] [--only collectives synthetic] [--device cpu]

Parts are `collectives`, with 2 ranks and with 4 on two hosts, so that both levels are used, and
`synthetic`, the benchmark of Horovod with 2 ranks. Each is a group of processes with a time limit.
It writes train_gpu_<part>.json under $OUT, or under bench/results/gpu/ if OUT is not set. With
`--device cpu` the same code runs tiny on the CPU, and records go to a temporary folder.
"""

import argparse
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench import record
from taco_train.cluster.launch import environments

RESULTS = Path(__file__).parents[1] / "results" / "gpu"
# Hosts of the ranks, by part.
PARTS = {"collectives": ("aa", "ab", "aabb"), "synthetic": ("ab",)}
_END_SECONDS = 10.0


def main() -> None:
    args = _parse_args()
    if args.device == "cuda" and not _has_gpu():
        sys.exit("gpu: no GPU that torch can use; --device cpu tries the scripts without one")
    folder = args.folder or _default_folder(args.device)
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 60 * args.minutes
    runs = [(part, hosts) for part in args.only for hosts in PARTS[part]]
    failed = []
    for number, (part, hosts) in enumerate(runs):
        seconds = max(20.0, (deadline - time.monotonic()) / (len(runs) - number))
        print(
            f"-- {part}, {len(hosts)} ranks on hosts {hosts}, at most {seconds:.0f} s", flush=True
        )
        figures = _run(part, hosts, args.device, seconds)
        if figures is None:
            failed.append(f"{part} {hosts}")
            continue
        path = folder / f"train_gpu_{part}_{hosts}.json"
        record.write(path, record.describe() | {"figures": figures})
        print(f"-- {path}")
    if failed:
        sys.exit(f"gpu: failed: {', '.join(failed)}")


def _run(part: str, hosts: Sequence[str], device: str, seconds: float) -> object:
    """The figures of rank 0; None where a rank failed or the time was over."""
    context = multiprocessing.get_context("forkserver")
    # Ranks are forked from a process that has imported torch, and has not used a GPU.
    context.set_forkserver_preload(["torch._dynamo", "bench.train.gpu_ranks"])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        variables = environments([f"host-{host}" for host in hosts], "127.0.0.1", _free_port())
        processes = []
        for rank, own in enumerate(variables):
            own = {**own, "NCCL_HOSTID": f"taco-{rank}"}
            if device == "cpu":
                own["CUDA_VISIBLE_DEVICES"] = ""
            process = context.Process(
                target=_run_rank, args=(own, part, device, seconds - _END_SECONDS, file)
            )
            process.start()
            processes.append(process)
        deadline = time.monotonic() + seconds
        for process in processes:
            process.join(max(0.1, deadline - time.monotonic()))
        if any(process.is_alive() for process in processes):
            print(f"gpu: {part} is not done after {seconds:.0f} s", file=sys.stderr)
        for process in processes:
            process.kill()
            process.join()
        if any(process.exitcode for process in processes):
            return None
        return json.loads(file.read_text())


def _run_rank(
    variables: Mapping[str, str], part: str, device: str, seconds: float, file: Path
) -> None:
    os.environ.update(variables)
    from bench.train.gpu_ranks import run_part

    run_part(part, device, seconds, file)


def _has_gpu() -> bool:
    code = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _default_folder(device: str) -> Path:
    """Keeps figures that were not measured on a GPU out of the results."""
    if folder := os.environ.get("OUT"):
        return Path(folder)
    return RESULTS if device == "cuda" else Path(tempfile.mkdtemp(prefix="taco-train-gpu-"))


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gpu.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=9.5, help="time limit of all parts")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--folder", type=Path, help="folder of the records, instead of OUT")
    return parser.parse_args()


if __name__ == "__main__":
    main()
