"""The cost model's choice beside each fixed one, on 12 links from 50 Mbit/s to loopback.

    python -m bench.train.cost_model [--bytes 4194304] [--rounds 5] [--save]

In every round the fixed choices and the cost model's (`LIGHT_COMPRESSION=auto`) take turns. On each
link the cost model measures anew. A ratio is its time over that of the fastest fixed choice, over
the rounds, with its 95% confidence interval.
"""

import argparse
import logging
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from bench import record
from bench.interval import ratio_interval
from bench.train import emulated
from taco_train.cluster.emulation.fabric import Fabric, parse_rate
from taco_train.collective.communicator import Communicator
from taco_train.collective.store import connect
from taco_train.lightcc.bucket_reducer import BucketReducer
from taco_train.lightcc.settings import Settings

LINKS = (
    *("50mbit", "100mbit", "200mbit", "350mbit", "500mbit", "750mbit"),
    *("1gbit", "1500mbit", "2500mbit", "5gbit", "10gbit", "loopback"),
)
AUTO = "auto"
GOAL = 1.05


def main() -> None:
    args = _parse_args()
    if emulated.is_rank():
        _measure(args)
        return
    shaped = [link for link in args.links if link != "loopback"]
    links: dict[str, Any] = {}
    for group in (shaped, [link for link in args.links if link == "loopback"]):
        if not group:
            continue
        fabric = Fabric(args.hosts, parse_rate(group[0]) if group is shaped else None)
        flags = ["--bytes", str(args.bytes), "--rounds", str(args.rounds), "--links", *group]
        links |= emulated.run("bench.train.cost_model", flags, fabric, args.ranks_per_host)
    print(f"{args.bytes} bytes, {args.hosts} hosts with {args.ranks_per_host} ranks each:")
    for link, found in links.items():
        print(line(link, found))
    if args.save:
        print(record.save("train_cost_model", {"bytes": args.bytes, "links": links}))


def line(link: str, found: Mapping[str, Any]) -> str:
    """One link as text."""
    ratio, low, high = found["ratio"]
    verdict = "behind" if low > GOAL else "met" if high <= GOAL else "met within the interval"
    return (
        f"  {link:>9}: {found['choice']:<12} {found['median_ms'][AUTO]:9.2f} ms, "
        f"{ratio:.3f} ({low:.3f}-{high:.3f}) of {found['best']}: {verdict}"
    )


def judge(seconds: Mapping[str, Sequence[float]], choice: str) -> dict[str, Any]:
    """The figures of one link: see `line`."""
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    best = min((name for name in medians if name != AUTO), key=medians.__getitem__)
    found = ratio_interval(seconds[AUTO], seconds[best])
    return {
        "choice": choice,
        "best": best,
        "ratio": [found.ratio, found.low, found.high],
        "median_ms": {name: 1e3 * value for name, value in medians.items()},
    }


def rotated(names: Sequence[str], by: int) -> list[str]:
    """The names from another one on: what runs before one leaves caches and links warm or busy."""
    first = by % len(names)
    return [*names[first:], *names[:first]]


class _Collect(logging.Handler):
    """Appends messages to a list."""

    def __init__(self, messages: list[str]) -> None:
        super().__init__()
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(record.getMessage())


def _measure(args: argparse.Namespace) -> None:
    """Runs in every rank."""
    torch.set_num_threads(1)
    fixed = {
        "flat": Settings(two_level=False),
        "2D": Settings(two_level=True),
        "flat + fp16": Settings(two_level=False, compression="fp16"),
        "2D + fp16": Settings(two_level=True, compression="fp16"),
        "2D + TopK": Settings(two_level=True, top_k=True, top_k_min_bytes=0),
    }
    logs: list[str] = []
    handler = _Collect(logs)
    logger = logging.getLogger("taco_train.lightcc.bucket_reducer")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)

    placement, store = connect()
    world = Communicator(placement, store)
    driver = emulated.Driver(placement.rank)
    reducers = {name: BucketReducer(one) for name, one in fixed.items()}
    gradient = torch.randn(args.bytes // 4)

    def seconds(name: str) -> float:
        buffer = gradient.clone()
        world.barrier()
        begun = time.perf_counter()
        names = [f"{name}: bucket"]
        reducers[name].all_reduce(world, buffer, "average", names, [buffer.numel()])
        slowest = torch.tensor([time.perf_counter() - begun], dtype=torch.float64)
        world.all_reduce(slowest, "max")
        return slowest.item()

    links: dict[str, Any] = {}
    for link in args.links:
        if link != "loopback":
            driver.set_rate(parse_rate(link))
        world.barrier()
        logs.clear()
        # The names are another link's: what TopK did not send there is of no concern here.
        reducers[AUTO] = BucketReducer(Settings(compression="auto", top_k_min_bytes=0))
        times: dict[str, list[float]] = {name: [] for name in reducers}
        for number in range(args.rounds + 1):  # the first round warms up
            for name in rotated(list(reducers), number):
                took = seconds(name)
                if number:
                    times[name].append(took)
        world.residuals.clear()
        reducers |= {name: BucketReducer(one) for name, one in fixed.items()}
        if placement.rank == 0:
            choice = next(text for text in logs if "predicted" in text)
            links[link] = judge(times, choice.split(": ")[1].split(" (")[0])
            links[link] |= {"measured": logs[0].removeprefix("measured: "), "predicted": choice}
            driver.show(line(link, links[link]))
    driver.report(links)
    world.barrier()
    world.close()


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bytes", type=int, default=4 << 20, help="of a bucket (default 4 MiB)")
    parser.add_argument("--rounds", type=int, default=5, help="of all choices (default 5)")
    parser.add_argument("--links", nargs="+", default=list(LINKS), metavar="RATE")
    parser.add_argument("--hosts", type=int, default=2, help="emulated hosts (default 2)")
    parser.add_argument("--ranks-per-host", type=int, default=2, help="(default 2)")
    parser.add_argument("--save", action="store_true", help="write bench/results/")
    return parser.parse_args(sys.argv[1:])


if __name__ == "__main__":
    main()
