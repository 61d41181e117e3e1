"""Gathers and scatters of taco_train beside gloo: time on emulated hosts, and bytes per host.

    python -m bench.train.rows [--rounds 5] [--links one-host 200mbit] [--save]

Needs the rights for network namespaces (`taco_train emulate`). `sockets` is the same collective
without shared memory, each rank with each other. In every round the arms run one after another; a
figure is the ratio of adjacent runs with its 95% confidence interval.
"""

import argparse
import os
import sys
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bench import record
from bench.train import emulated
from bench.train.collectives import LINKS, Arm, compare, interface, show, with_ratios
from taco_train.cluster.emulation.fabric import Fabric, parse_rate
from taco_train.collective.communicator import Communicator
from taco_train.collective.levels import Levels
from taco_train.collective.store import connect

SIZES = {"one-host": [(16 << 10, 50), (1 << 20, 10), (16 << 20, 1)], "200mbit": [(4 << 20, 1)]}


def main() -> None:
    args = _parse_args()
    if emulated.is_rank():
        measure(args.rounds, args.links[0])
        return
    links: dict[str, dict[str, list[Any]]] = {}
    for link in args.links:
        hosts, ranks_per_host, rate = LINKS[link]
        fabric = Fabric(hosts, None if rate is None else parse_rate(rate))
        flags = ["--rounds", str(args.rounds), "--links", link]
        calls = emulated.run("bench.train.rows", flags, fabric, ranks_per_host)
        links[link] = {name: list(map(with_ratios, found)) for name, found in calls.items()}
        for name, found in links[link].items():
            for size in found:
                show(f"{link}, {name}", size)
    if args.save:
        print(record.save("train_rows", {"links": links}))


def measure(rounds: int, link: str) -> None:
    """Runs in every rank; rank 0 reports the times and bytes of all arms."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface())
    placement, store = connect()
    ranks = Communicator(placement, store)
    apart = Communicator(placement, store, name="apart", levels=Levels(intra_size=1))
    dist.init_process_group("gloo")

    def gather(group: Communicator | None, tensor: Tensor) -> None:
        if group is not None:
            group.all_gather(tensor)
        else:
            dist.all_gather_into_tensor(tensor.new_empty(len(tensor) * placement.size), tensor)

    def exchange(group: Communicator | None, tensor: Tensor) -> None:
        if group is not None:
            group.all_to_all(tensor)
        else:
            dist.all_to_all_single(torch.empty_like(tensor), tensor)

    def scatter(group: Communicator | None, tensor: Tensor) -> None:
        if group is not None:
            group.reduce_scatter(tensor)
        else:
            dist.reduce_scatter_tensor(tensor.new_empty(len(tensor) // placement.size), tensor)

    found: dict[str, object] = {}
    for call in (gather, exchange, scatter):
        arms: dict[str, Arm] = {
            "gloo": partial(call, None),
            "sockets": partial(call, apart),
            "shared memory": partial(call, ranks),
        }
        found[call.__name__] = [
            compare(ranks, arms, size, rounds, repeats) for size, repeats in SIZES[link]
        ]
    emulated.Driver(placement.rank).report(found)
    ranks.barrier()
    dist.destroy_process_group()
    apart.close()
    ranks.close()


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds of all arms (default 5)")
    parser.add_argument("--links", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--save", action="store_true", help="write bench/results/")
    return parser.parse_args(sys.argv[1:])


if __name__ == "__main__":
    main()
