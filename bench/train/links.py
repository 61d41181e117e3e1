"""Training speed on links that slow plain DDP down to a given share.

    python -m bench.train.links [--shares 0.44 0.21] [--model resnet50] [--save]

For each share the run searches the rate at which plain DDP has that share of the speed of the same
ranks with communication off. The ranks share the machine's cores, so that one rank alone would be
no fair measure. There all configurations take turns. A ratio is that of adjacent steps, with its
95% confidence interval. `bench.train.time_to_loss` measures how fast a model learns there.
"""

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from bench import record
from bench.interval import ratio_interval
from bench.train import emulated
from bench.train.figures import AUTO, DDP, OFF, POWER_SGD, TOP_K
from bench.train.search import FIRST_RATE, find_rate
from bench.train.tasks import TASKS
from bench.train.trainer import Trainer
from taco_train.cluster.emulation.fabric import Fabric

ARMS = (OFF, DDP, TOP_K, AUTO, POWER_SGD)
GOAL = 0.85  # of communication off


def main() -> None:
    args = _parse_args()
    if emulated.is_rank():
        _measure(args)
        return
    flags = ["--model", args.model, "--rounds", str(args.rounds)]
    flags += ["--batch-size", str(args.batch_size), "--shares", *map(str, args.shares)]
    links = emulated.run(
        "bench.train.links", flags, Fabric(args.hosts, FIRST_RATE), args.ranks_per_host
    )
    figures = {"model": args.model, "batch_size": args.batch_size, "hosts": args.hosts}
    figures |= {"ranks_per_host": args.ranks_per_host, "links": links}
    if args.save:
        print(record.save("train_links", figures))


def lines(link: Mapping[str, Any]) -> Iterator[str]:
    """One link as text."""
    yield f"{link['rate'] / 1e6:.0f} Mbit/s, searched for DDP at {link['share']:.0%}:"
    for arm, (ratio, low, high) in link["of_off"].items():
        milliseconds = 1e3 * statistics.median(link["seconds"][arm])
        goal = f", goal {GOAL:.0%}" if arm in (TOP_K, AUTO) else ""
        yield (
            f"  {arm:<18} {milliseconds:9.1f} ms a step, {ratio:.1%} ({low:.1%}-{high:.1%}) "
            f"of {OFF}{goal}"
        )


def _measure(args: argparse.Namespace) -> None:
    """Runs in every rank."""
    task = TASKS[args.model]
    trainer = Trainer(
        lambda: task.make(task.size), lambda made: torch.optim.SGD(made.parameters(), lr=0.01)
    )
    driver = emulated.Driver(trainer.placement.rank)
    batch = task.batch(args.batch_size, task.size)
    trainer.warm_up((OFF, POWER_SGD), batch, 1)
    links: list[dict[str, Any]] = []
    rate = FIRST_RATE
    for share in args.shares:
        rate = find_rate(trainer, driver, batch, share, rate)
        trainer.arms.restart(AUTO)  # the cost model measures this link
        trainer.warm_up(ARMS, batch, 1)
        seconds = trainer.rounds(ARMS, batch, num_rounds=args.rounds, num_batches=1)
        of_off = {}
        for arm in ARMS[1:]:
            found = ratio_interval(seconds[OFF], seconds[arm])
            of_off[arm] = [found.ratio, found.low, found.high]
        links.append({"share": share, "rate": rate, "seconds": seconds, "of_off": of_off})
        driver.show("\n".join(lines(links[-1])))
    driver.report(links)
    trainer.close()


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shares", nargs="+", type=float, default=[0.44, 0.21], metavar="SHARE")
    parser.add_argument("--model", choices=TASKS, default="resnet50", help="(default resnet50)")
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank (default 32)")
    parser.add_argument("--rounds", type=int, default=4, help="of all configurations (default 4)")
    parser.add_argument("--hosts", type=int, default=2, help="emulated hosts (default 2)")
    parser.add_argument("--ranks-per-host", type=int, default=2, help="(default 2)")
    parser.add_argument("--save", action="store_true", help="write bench/results/")
    return parser.parse_args(sys.argv[1:])


if __name__ == "__main__":
    main()
