"""All-reduce of taco_train beside gloo: time on emulated hosts and links, and bytes per host.

    python -m bench.train.collectives [--rounds N] [--links one-host,200mbit,1gbit]

Needs the rights for network namespaces (`taco_train emulate`). In every round the arms run one
after another; a figure is the ratio of adjacent runs with its 95% confidence interval. Bytes are
those that a host's interface sends, from the kernel's counters.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from bench.interval import ratio_interval
from taco_train.collective.communicator import Communicator
from taco_train.collective.store import connect
from taco_train.collective.wire import DENSE, FLOAT16, TopK

LINKS = {
    "one-host": ["--hosts", "1", "--ranks-per-host", "4"],
    "one-host-2": ["--hosts", "1", "--ranks-per-host", "2"],
    "200mbit": ["--hosts", "2", "--ranks-per-host", "2", "--rate", "200mbit"],
    "1gbit": ["--hosts", "2", "--ranks-per-host", "2", "--rate", "1gbit"],
}
LARGE_BYTES = 33_554_432
INSIDE_BYTES = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20]
Arm = Callable[[Tensor], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of all arms (default 5)")
    parser.add_argument(
        "--links", default="one-host,200mbit,1gbit", help=f"some of {', '.join(LINKS)}"
    )
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        measure(arguments.rounds, is_inside=arguments.links.startswith("one-host"))
        return
    for link in arguments.links.split(","):
        own = [sys.executable, "-m", "bench.train.collectives", "--rounds", str(arguments.rounds)]
        emulate = [sys.executable, "-m", "taco_train.cli", "emulate", *LINKS[link], "--"]
        result = subprocess.run(
            [*emulate, *own, "--links", link], stdout=subprocess.PIPE, text=True, check=True
        )
        line = next(line for line in result.stdout.splitlines() if "{" in line)
        show(link, json.loads(line[line.index("{") :]))


def measure(rounds: int, *, is_inside: bool) -> None:
    """Runs in every rank; rank 0 prints the times and bytes of all arms as JSON."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface())
    placement, store = connect()
    ranks = Communicator(placement, store)
    dist.init_process_group("gloo")
    arms: dict[str, Arm] = {
        "gloo": dist.all_reduce,
        "flat": lambda tensor: ranks.all_reduce(tensor, depth=1),
        "2D": lambda tensor: ranks.all_reduce(tensor, wire=DENSE),
        "2D + float16": lambda tensor: ranks.all_reduce(tensor, wire=FLOAT16),
        "2D + top-k": lambda tensor: ranks.all_reduce(tensor, wire=TopK("a")),
        "2D + top-k, float16": lambda tensor: ranks.all_reduce(
            tensor, wire=TopK("b", values="float16")
        ),
    }
    sizes, repeats = [LARGE_BYTES], 1
    if is_inside:
        arms = {"gloo": arms["gloo"], "2D": arms["2D"]}
        sizes, repeats = INSIDE_BYTES, 100
    found: list[dict[str, object]] = []
    for size in sizes:
        tensor = torch.randn(size // 4)
        times: dict[str, list[float]] = {name: [] for name in arms}
        sent: dict[str, int] = {}
        for number in range(rounds + 1):  # the first round warms up
            for name, arm in arms.items():
                seconds, num_bytes = timed(ranks, arm, tensor, repeats)
                if number:
                    times[name].append(seconds)
                    sent[name] = num_bytes
        found.append({"bytes": size, "times": times, "sent": sent})
    if placement.rank == 0:
        print(json.dumps({"sizes": found}), flush=True)
    dist.destroy_process_group()
    ranks.close()


def timed(ranks: Communicator, arm: Arm, tensor: Tensor, repeats: int) -> tuple[float, int]:
    """Seconds of one call on the slowest rank, and bytes that this rank's host sends."""
    tensor.normal_()
    ranks.barrier()
    before, start = sent_bytes(), time.perf_counter()
    for _ in range(repeats):
        arm(tensor)
    seconds = torch.tensor((time.perf_counter() - start) / repeats, dtype=torch.float64)
    ranks.barrier()
    num_bytes = sent_bytes() - before
    ranks.all_reduce(seconds, "max")
    return seconds.item(), num_bytes


def interface() -> str:
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name != "lo"), "lo")


def sent_bytes() -> int:
    """By all interfaces of this host but the loopback."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    rows = [line.replace(":", " ").split() for line in lines]
    return sum(int(row[9]) for row in rows if row[0] != "lo")


def show(link: str, found: dict[str, list[dict[str, dict[str, list[float]]]]]) -> None:
    for size in found["sizes"]:
        times, sent = size["times"], size["sent"]
        print(f"{link}, {size['bytes']} bytes:")
        for name, seconds in times.items():
            speed = ratio_interval(times["gloo"], seconds)
            line = (
                f"  {name:<20} {1e3 * sorted(seconds)[len(seconds) // 2]:9.3f} ms, "
                f"{speed.ratio:6.2f}x gloo's speed ({speed.low:.2f} to {speed.high:.2f})"
            )
            base = next((arm for arm in ("flat", "sockets") if sent.get(arm)), None)
            if base is not None:
                line += f", {sent[name]} bytes, 1/{sent[base] / sent[name]:.2f} of {base}"  # type: ignore[operator]
            print(line, flush=True)


if __name__ == "__main__":
    main()
