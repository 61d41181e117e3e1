"""Gathers and scatters of taco_train beside gloo: time on emulated hosts, and bytes per host.

    python -m bench.train.rows [--rounds N] [--links one-host,200mbit]

Needs the rights for network namespaces (`taco_train emulate`). `sockets` is the same collective
without shared memory, each rank with each other. In every round the arms run one after another; a
figure is the ratio of adjacent runs with its 95% confidence interval.
"""

import argparse
import json
import os
import subprocess
import sys
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from bench.train.collectives import LINKS, Arm, interface, show, timed
from taco_train.collective.communicator import Communicator
from taco_train.collective.levels import Levels
from taco_train.collective.store import connect

SIZES = {"one-host": [(16 << 10, 50), (1 << 20, 10), (16 << 20, 1)], "200mbit": [(4 << 20, 1)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of all arms (default 5)")
    parser.add_argument("--links", default="one-host,200mbit", help=f"some of {', '.join(SIZES)}")
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        measure(arguments.rounds, arguments.links)
        return
    for link in arguments.links.split(","):
        own = [sys.executable, "-m", "bench.train.rows", "--rounds", str(arguments.rounds)]
        emulate = [sys.executable, "-m", "taco_train.cli", "emulate", *LINKS[link], "--"]
        result = subprocess.run(
            [*emulate, *own, "--links", link], stdout=subprocess.PIPE, text=True, check=True
        )
        line = next(line for line in result.stdout.splitlines() if "{" in line)
        for name, found in json.loads(line[line.index("{") :]).items():
            show(f"{link}, {name}", found)


def measure(rounds: int, link: str) -> None:
    """Runs in every rank; rank 0 prints the times and bytes of all arms as JSON."""
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
        sizes = []
        for size, repeats in SIZES[link]:
            arms: dict[str, Arm] = {
                "gloo": partial(call, None),
                "sockets": partial(call, apart),
                "shared memory": partial(call, ranks),
            }
            tensor = torch.randn(size // 4)
            times: dict[str, list[float]] = {name: [] for name in arms}
            sent: dict[str, int] = {}
            for number in range(rounds + 1):  # the first round warms up
                for name, arm in arms.items():
                    seconds, num_bytes = timed(ranks, arm, tensor, repeats)
                    if number:
                        times[name].append(seconds)
                        sent[name] = num_bytes
            sizes.append({"bytes": size, "times": times, "sent": sent})
        found[call.__name__] = {"sizes": sizes}
    if placement.rank == 0:
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()
    apart.close()
    ranks.close()


if __name__ == "__main__":
    main()
