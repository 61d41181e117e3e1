"""Time in which a transformer learns the demo model's data to a fixed loss, on slow links.

    python -m bench.train.time_to_loss [--shares 0.44 0.21] [--loss 2.7] [--save]

For each share the run searches the rate of the links at which plain DDP has that share of the speed
without communication. There TopK (1%, momentum correction) and torch's PowerSGD hook of rank 4
train from the same parameters on the same batches, and take turns in blocks of steps. Time is that
of the steps alone; the loss is that of held-out rows after each block.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bench import record
from bench.train import emulated
from bench.train.figures import POWER_SGD, TOP_K, seconds_to
from bench.train.learning import MOMENTUM, batch, held_out_loss, learning_rate_share, started_model
from bench.train.search import FIRST_RATE, find_rate
from bench.train.trainer import Trainer
from taco_train.cluster.emulation.fabric import Fabric
from taco_train.lightcc.settings import Settings

ARMS = (TOP_K, POWER_SGD)
GOAL = 0.8


def main() -> None:
    args = _parse_args()
    if emulated.is_rank():
        _measure(args)
        return
    counts = ("steps", "block", "width", "rows", "loss", "learning_rate")
    flags = [
        text for one in counts for text in (f"--{one}".replace("_", "-"), str(vars(args)[one]))
    ]
    fabric = Fabric(args.hosts, FIRST_RATE)
    links = emulated.run(
        "bench.train.time_to_loss",
        [*flags, "--shares", *map(str, args.shares)],
        fabric,
        args.ranks_per_host,
    )
    figures = {one: vars(args)[one] for one in (*counts, "hosts", "ranks_per_host")}
    if args.save:
        print(record.save("train_time_to_loss", figures | {"links": links}))


def lines(link: Mapping[str, Any], loss: float) -> Iterator[str]:
    """One link as text."""
    yield f"{link['rate'] / 1e6:.0f} Mbit/s, searched for DDP at {link['share']:.0%}:"
    times = {arm: seconds_to(loss, curve) for arm, curve in link["curves"].items()}
    for arm, seconds in times.items():
        last_seconds, last = link["curves"][arm][-1]
        reached = "not reached" if seconds is None else f"{seconds:.2f} s"
        yield f"  {arm:<18} loss {loss}: {reached}; {last:.4f} after {last_seconds:.2f} s"
    ours, theirs = times[TOP_K], times[POWER_SGD]
    if ours is not None and theirs is not None:
        yield f"  {ours / theirs:.2f} of PowerSGD's time, goal {GOAL}"


def _measure(args: argparse.Namespace) -> None:
    """Runs in every rank."""
    top_k = Settings(two_level=True, top_k=True, top_k_min_bytes=0, top_k_momentum=MOMENTUM)
    trainer = Trainer(
        lambda: started_model(args.width),
        lambda made: torch.optim.SGD(made.parameters(), lr=0.0),
        {TOP_K: top_k},
    )
    driver = emulated.Driver(trainer.placement.rank)
    start = [one.detach().clone() for one in trainer.model.parameters()]
    rows = batch(0, trainer.placement.rank, trainer.control.size, args.rows)
    trainer.warm_up(ARMS, (rows[:, :-1], rows[:, 1:]), 2)
    links: list[dict[str, Any]] = []
    rate = FIRST_RATE
    for share in args.shares:
        rate = find_rate(trainer, driver, (rows[:, :-1], rows[:, 1:]), share, rate)
        learners = {arm: _Learner(arm, trainer, start, args) for arm in ARMS}
        for begin in range(0, args.steps, args.block):
            for learner in learners.values():
                learner.advance(begin)
        curves = {arm: learner.curve for arm, learner in learners.items()}
        link = {"share": share, "rate": rate, "curves": curves}
        links.append(link)
        driver.show("\n".join(lines(link, args.loss)))
    driver.report(links)
    trainer.close()


class _Learner:
    """One arm's copy of the parameters, its optimizer, and its loss over time.

    Attributes:
        curve: (seconds of steps so far, held-out loss) after each block.
    """

    def __init__(
        self, arm: str, trainer: Trainer, start: Sequence[Tensor], args: argparse.Namespace
    ):
        trainer.arms.restart(arm)
        self.curve: list[tuple[float, float]] = []
        self._arm, self._trainer, self._args = arm, trainer, args
        self._parameters = [one.clone() for one in start]
        # TopK's momentum correction takes the place of the optimizer's momentum.
        momentum = 0.0 if arm == TOP_K else MOMENTUM
        self._optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.0, momentum=momentum)

    def advance(self, begin: int) -> None:
        """Trains for a block of steps from step `begin` on."""
        trainer, args = self._trainer, self._args
        rank, size = trainer.placement.rank, trainer.control.size
        with torch.no_grad():
            for one, ours in zip(trainer.model.parameters(), self._parameters, strict=True):
                one.copy_(ours)
        batches = [batch(begin + i, rank, size, args.rows) for i in range(args.block)]
        trainer.optimizer, trainer.arms.current = self._optimizer, self._arm
        trainer.control.barrier()
        begun = time.perf_counter()
        for step, rows in enumerate(batches, begin):
            share = learning_rate_share(step, args.steps)
            self._optimizer.param_groups[0]["lr"] = args.learning_rate * share
            trainer.step((rows[:, :-1], rows[:, 1:]))
        seconds = trainer.slowest(time.perf_counter() - begun)
        self._parameters = [one.detach().clone() for one in trainer.model.parameters()]
        so_far = self.curve[-1][0] if self.curve else 0.0
        self.curve.append((so_far + seconds, held_out_loss(trainer.model)))


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shares", nargs="+", type=float, default=[0.44, 0.21], metavar="SHARE")
    parser.add_argument("--loss", type=float, default=2.7, help="nats a byte (default 2.7)")
    parser.add_argument("--learning-rate", type=float, default=0.6, help="largest (default 0.6)")
    parser.add_argument("--steps", type=int, default=400, help="of each arm (default 400)")
    parser.add_argument("--block", type=int, default=20, help="steps in turn (default 20)")
    parser.add_argument("--width", type=int, default=64, help="of hidden states (default 64)")
    parser.add_argument("--rows", type=int, default=4, help="of a rank's batch (default 4)")
    parser.add_argument("--hosts", type=int, default=2, help="emulated hosts (default 2)")
    parser.add_argument("--ranks-per-host", type=int, default=2, help="(default 2)")
    parser.add_argument("--save", action="store_true", help="write bench/results/")
    return parser.parse_args(sys.argv[1:])


if __name__ == "__main__":
    main()
