"""All-reduce of taco_train beside gloo: time on emulated hosts and links, and bytes per host.

    python -m bench.train.collectives [--rounds 5] [--links one-host 200mbit 1gbit] [--save]

Needs the rights for network namespaces (`taco_train emulate`). In every round the arms run one
after another; a figure is the ratio of adjacent runs with its 95% confidence interval. Bytes are
those that a host's interface sends, from the kernel's counters.
"""

import argparse
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bench import record
from bench.interval import ratio_interval
from bench.train import emulated
from taco_train.cluster.emulation.fabric import Fabric, parse_rate
from taco_train.collective.communicator import Communicator
from taco_train.collective.store import connect
from taco_train.collective.wire import DENSE, FLOAT16, TopK

# Hosts, ranks of each, rate.
LINKS: Mapping[str, tuple[int, int, str | None]] = {
    "one-host": (1, 4, None),
    "one-host-2": (1, 2, None),
    "200mbit": (2, 2, "200mbit"),
    "1gbit": (2, 2, "1gbit"),
}
LARGE_BYTES = 33_554_432
INSIDE_BYTES = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20]
Arm = Callable[[Tensor], object]


def main() -> None:
    args = _parse_args()
    if emulated.is_rank():
        measure(args.rounds, is_inside=args.links[0].startswith("one-host"))
        return
    links = {}
    for link in args.links:
        hosts, ranks_per_host, rate = LINKS[link]
        fabric = Fabric(hosts, None if rate is None else parse_rate(rate))
        flags = ["--rounds", str(args.rounds), "--links", link]
        found = emulated.run("bench.train.collectives", flags, fabric, ranks_per_host)
        links[link] = [with_ratios(size) for size in found]
        for size in links[link]:
            show(link, size)
    if args.save:
        print(record.save("train_collectives", {"links": links}))


def measure(rounds: int, *, is_inside: bool) -> None:
    """Runs in every rank; rank 0 reports the times and bytes of all arms."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface())
    placement, store = connect()
    ranks = Communicator(placement, store)
    dist.init_process_group("gloo")
    arms: dict[str, Arm] = {
        "gloo": dist.all_reduce,
        "flat": lambda tensor: ranks.all_reduce(tensor, depth=1),
        "2D": lambda tensor: ranks.all_reduce(tensor, wire=DENSE),
        "2D + fp16": lambda tensor: ranks.all_reduce(tensor, wire=FLOAT16),
        "2D + TopK": lambda tensor: ranks.all_reduce(tensor, wire=TopK("a")),
        "2D + TopK, fp16": lambda tensor: ranks.all_reduce(
            tensor, wire=TopK("b", values="float16")
        ),
    }
    sizes, repeats = [LARGE_BYTES], 1
    if is_inside:
        arms = {"gloo": arms["gloo"], "2D": arms["2D"]}
        sizes, repeats = INSIDE_BYTES, 100
    found = [compare(ranks, arms, size, rounds, repeats) for size in sizes]
    emulated.Driver(placement.rank).report(found)
    ranks.barrier()
    dist.destroy_process_group()
    ranks.close()


def compare(
    ranks: Communicator, arms: Mapping[str, Arm], size: int, rounds: int, repeats: int
) -> dict[str, Any]:
    """Times and bytes of all arms, which take turns, for a tensor of `size` bytes."""
    tensor = torch.randn(size // 4)
    times: dict[str, list[float]] = {name: [] for name in arms}
    sent: dict[str, int] = {}
    for number in range(rounds + 1):  # the first round warms up
        for name, arm in arms.items():
            seconds, num_bytes = timed(ranks, arm, tensor, repeats)
            if number:
                times[name].append(seconds)
                sent[name] = num_bytes
    return {"bytes": size, "seconds": times, "sent": sent}


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


def with_ratios(size: Mapping[str, Any]) -> dict[str, Any]:
    """Adds each arm's speed as a multiple of gloo's, with its interval, and its share of the bytes
    that the `base` sends, where a host sends any.
    """
    speeds = {}
    for name, seconds in size["seconds"].items():
        found = ratio_interval(size["seconds"]["gloo"], seconds)
        speeds[name] = [found.ratio, found.low, found.high]
    sent = size["sent"]
    base = next((arm for arm in ("flat", "sockets") if sent.get(arm)), None)
    shares = {} if base is None else {name: one / sent[base] for name, one in sent.items()}
    return {**size, "speed": speeds, "base": base, "share": shares}


def show(link: str, size: Mapping[str, Any]) -> None:
    print(f"{link}, {size['bytes']} bytes:")
    for name, (ratio, low, high) in size["speed"].items():
        milliseconds = 1e3 * statistics.median(size["seconds"][name])
        line = f"  {name:<20} {milliseconds:9.3f} ms, "
        line += f"{ratio:6.2f}x gloo's speed ({low:.2f}-{high:.2f})"
        if name in size["share"]:
            line += f", {size['sent'][name]} bytes, 1/{1 / size['share'][name]:.2f} "
            line += f"of {size['base']}"
        print(line, flush=True)


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds of all arms (default 5)")
    parser.add_argument(
        "--links", nargs="+", choices=LINKS, default=["one-host", "200mbit", "1gbit"]
    )
    parser.add_argument("--save", action="store_true", help="write bench/results/")
    return parser.parse_args(sys.argv[1:])


if __name__ == "__main__":
    main()
