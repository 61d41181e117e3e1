"""Speed of synthetic training, by the way to average gradients: the spec's procedure, on CPUs.

    python -m bench.train.synthetic [--models resnet50 vgg16 transformer] [--rate 1gbit] [--save]

Each model is trained on random batches by ranks on emulated hosts. All configurations take turns
in each iteration of one run. A figure is images per second and rank, over the slowest rank, with
1.96 standard deviations of the iterations, as Horovod's synthetic benchmark prints it. Ratios are
of adjacent iterations, with their 95% confidence interval. `one rank` runs alone: it has a core to
itself, which ranks that share the machine's cores do not.
"""

import argparse
import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bench import record
from bench.train import emulated
from bench.train.figures import ARMS, COLUMNS, ONE_RANK, rows, summary
from bench.train.tasks import TASKS
from bench.train.trainer import Trainer
from taco_train.cluster.emulation.fabric import Fabric, parse_rate


def main() -> None:
    args = _parse_args()
    if emulated.is_rank():
        _measure(args)
        return
    models = {}
    for model in args.models:
        fabric = Fabric(args.hosts, None if args.rate == "none" else parse_rate(args.rate))
        models[model] = emulated.run(
            "bench.train.synthetic", _arguments(args, model), fabric, args.ranks_per_host
        )
        print("\n".join(table(models[model])), flush=True)
    if args.csv:
        with args.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("model", *COLUMNS))
            for model, figures in models.items():
                writer.writerows((model, *row) for row in rows(figures))
    if args.save:
        print(record.save("train_synthetic", {"models": models}))


def table(figures: Mapping[str, Any]) -> Iterator[str]:
    """The rows as aligned text."""
    yield (
        f"{figures['model']}: {figures['unit']}/sec, batch size {figures['batch_size']} of "
        f"{figures['size']}, {figures['ranks']} ranks on {figures['hosts']} hosts, "
        f"{figures['rate']} links"
    )
    for row in (COLUMNS, *rows(figures)):
        yield f"  {row[0]:<18}" + "".join(f"{cell:>18}" for cell in row[1:])


def _measure(args: argparse.Namespace) -> None:
    """Runs in every rank."""
    [model] = args.models
    task = TASKS[model]
    batch_size, length = args.batch_size or task.batch_size, args.size or task.size
    trainer = Trainer(
        lambda: task.make(length), lambda made: torch.optim.SGD(made.parameters(), lr=0.01)
    )
    driver = emulated.Driver(trainer.placement.rank)
    batch = task.batch(batch_size, length)
    driver.show(f"Model: {model}\nBatch size: {batch_size}\nNumber of CPUs: {trainer.control.size}")
    driver.show("Running warmup...")
    trainer.warm_up(args.arms, batch, args.num_warmup_batches)
    driver.show("Running benchmark...")
    samples = batch_size * args.num_batches_per_iter
    speeds: dict[str, list[float]] = {arm: [] for arm in (ONE_RANK, *args.arms)}
    for _ in range(args.num_iters):
        speeds[ONE_RANK].append(samples / trainer.timed_alone(batch, args.num_batches_per_iter))
        for arm in args.arms:
            seconds = trainer.timed(arm, batch, args.num_batches_per_iter)
            speeds[arm].append(samples / seconds)
    for arm, values in speeds.items():
        size = 1 if arm == ONE_RANK else trainer.control.size
        driver.show("\n".join(_lines(arm, values, size, task.unit)))
    driver.report(
        {
            "model": model,
            "parameters": sum(one.numel() for one in trainer.model.parameters()),
            "unit": task.unit,
            "batch_size": batch_size,
            "size": length,
            "hosts": args.hosts,
            "ranks": trainer.control.size,
            "rate": args.rate,
            "speeds": speeds,
        }
    )
    trainer.close()


def _lines(arm: str, values: Sequence[float], size: int, unit: str) -> Iterator[str]:
    """The lines of Horovod's benchmark for one configuration."""
    yield f"{arm}:"
    for number, value in enumerate(values):
        yield f"Iter #{number}: {value:.1f} {unit}/sec per CPU"
    mean, spread = summary(values)
    yield f"{unit.capitalize()}/sec per CPU: {mean:.1f} +-{spread:.1f}"
    yield f"Total {unit}/sec on {size} CPU(s): {size * mean:.1f} +-{size * spread:.1f}"


def _arguments(args: argparse.Namespace, model: str) -> list[str]:
    """Of a rank that trains one model."""
    counts = {
        "--num-warmup-batches": args.num_warmup_batches,
        "--num-batches-per-iter": args.num_batches_per_iter,
        "--num-iters": args.num_iters,
        "--batch-size": args.batch_size,
        "--size": args.size,
        "--hosts": args.hosts,
        "--rate": args.rate,
    }
    flags = [text for name, value in counts.items() if value for text in (name, str(value))]
    return ["--models", model, "--arms", *args.arms, *flags]


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=TASKS, default=list(TASKS), metavar="MODEL")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), metavar="NAME")
    parser.add_argument("--batch-size", type=int, help="of each rank (default: by model)")
    parser.add_argument("--size", type=int, help="pixels, or tokens of a row (default: by model)")
    parser.add_argument("--num-warmup-batches", type=int, default=1, help="by arm (default 1)")
    parser.add_argument("--num-batches-per-iter", type=int, default=1, help="(default 1)")
    parser.add_argument("--num-iters", type=int, default=4, help="(default 4)")
    parser.add_argument("--hosts", type=int, default=2, help="emulated hosts (default 2)")
    parser.add_argument("--ranks-per-host", type=int, default=2, help="(default 2)")
    parser.add_argument("--rate", default="1gbit", help="of links, or none (default 1gbit)")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the tables to FILE")
    parser.add_argument("--save", action="store_true", help="write bench/results/")
    return parser.parse_args(sys.argv[1:])


if __name__ == "__main__":
    main()
