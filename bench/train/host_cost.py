"""CPU time that LightCC takes of the host beside the transfer itself.

    python -m bench.train.host_cost [--steps 20] [--save]

DDP: ResNet-50 with buckets of 25 MB on two emulated hosts. A bucket's cost is the CPU time of the
hook and of its wait in the thread of the backward pass, and that of the thread that reduces less
what it spends inside the C++ all-reduce. A step's share is that of all buckets in the CPU time of
the rank.

Horovod: all gradients of ResNet-50 as tensors of 1 KiB. A tensor's cost is the CPU time of all
threads of the rank, negotiation and fusion included, less that inside the C++ all-reduce.
"""

import argparse
import os
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from bench import record
from bench.train import emulated
from bench.train.arms import SETTINGS
from bench.train.models.resnet import ResNet50
from bench.train.tasks import TASKS
from bench.train.trainer import Trainer
from taco_train.cluster.emulation.fabric import Fabric
from taco_train.collective.library import load
from taco_train.lightcc.bucket_queue import BucketQueue
from taco_train.lightcc.horovod import torch as hvd

_TENSOR_BYTES = 1024
GOAL_MICROSECONDS, GOAL_SHARE = 150, 0.01


def main() -> None:
    args = _parse_args()
    if emulated.is_rank():
        _measure(args.steps)
        return
    figures = emulated.run(
        "bench.train.host_cost", ["--steps", str(args.steps)], Fabric(args.hosts), 1
    )
    for name, found in figures["ddp"].items():
        print(
            f"{name:<12} {found['microseconds']:7.1f} us a bucket, {found['share']:.3%} of a step "
            f"with {found['buckets']} buckets (goals: {GOAL_MICROSECONDS} us, {GOAL_SHARE:.0%})"
        )
    print(f"Horovod      {figures['horovod']['microseconds']:7.1f} us a tensor")
    if args.save:
        print(record.save("train_host_cost", figures))


class _Inside:
    """CPU seconds inside the C++ all-reduces, by thread."""

    def __init__(self) -> None:
        self.seconds: dict[int, float] = defaultdict(float)
        for name in ("taco_collective_all_reduce", "taco_collective_sparse_all_reduce"):
            setattr(load(), name, self._timed(getattr(load(), name)))

    def _timed(self, function: Callable[..., int]) -> Callable[..., int]:
        def timed(*args: Any) -> int:
            begun = time.thread_time()
            code = function(*args)
            self.seconds[threading.get_ident()] += time.thread_time() - begun
            return code

        return timed

    def outside(self) -> float:
        """CPU seconds so far of the threads that reduce DDP's buckets, less those inside."""
        threads = [one for one in threading.enumerate() if one.name == "lightcc-buckets"]
        return sum(_cpu_seconds(one) - self.seconds[one.ident or 0] for one in threads)


def _cpu_seconds(thread: threading.Thread) -> float:
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0))


def _measure(steps: int) -> None:
    """Runs in every rank."""
    inside = _Inside()
    ddp = _ddp(inside, steps)
    horovod = _horovod(inside, steps)
    emulated.Driver(int(os.environ["RANK"])).report({"ddp": ddp, "horovod": horovod})


def _ddp(inside: _Inside, steps: int) -> dict[str, Any]:
    task = TASKS["resnet50"]
    trainer = Trainer(lambda: task.make(0), lambda made: torch.optim.SGD(made.parameters(), lr=0.0))
    batch = task.batch(task.batch_size, task.size)
    hook_seconds: list[float] = []
    wait_seconds: list[float] = []
    trainer.arms.average = _timed(trainer.arms.average, hook_seconds)  # type: ignore[method-assign]
    BucketQueue.wait = _timed(BucketQueue.wait, wait_seconds)  # type: ignore[method-assign]
    trainer.warm_up(list(SETTINGS), batch, 2)  # the hook knows its buckets from the third pass on
    figures: dict[str, Any] = {}
    for name in SETTINGS:
        costs, shares = [], []
        for _ in range(steps):
            hook_seconds.clear()
            wait_seconds.clear()
            outside, begun = inside.outside(), time.process_time()
            trainer.timed(name, batch, 1)
            cost = sum(hook_seconds) + sum(wait_seconds) + inside.outside() - outside
            costs.append(1e6 * cost / len(hook_seconds))
            shares.append(cost / (time.process_time() - begun))
        figures[name] = {
            "microseconds": statistics.median(costs),
            "share": statistics.median(shares),
            "buckets": len(hook_seconds),
        }
    trainer.close()
    return figures


def _timed(call: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    """The function; the CPU time of its thread inside it is appended to the list."""

    def timed(*args: Any) -> Any:
        begun = time.thread_time()
        try:
            return call(*args)
        finally:
            seconds.append(time.thread_time() - begun)

    return timed


def _horovod(inside: _Inside, steps: int) -> dict[str, Any]:
    hvd.init()
    names = [name for name, _ in ResNet50().named_parameters()]
    tensors = [torch.ones(_TENSOR_BYTES // 4) for _ in names]
    costs = []
    for _ in range(2 * steps):  # the first half warms up: names are described once
        before, begun = sum(inside.seconds.values()), time.process_time()
        handles = [
            hvd.allreduce_async_(tensor, name=name)
            for tensor, name in zip(tensors, names, strict=True)
        ]
        for handle in handles:
            hvd.synchronize(handle)
        cost = time.process_time() - begun - (sum(inside.seconds.values()) - before)
        costs.append(1e6 * cost / len(names))
    hvd.shutdown()
    return {"microseconds": statistics.median(costs[steps:]), "tensors": len(names)}


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=10, help="of each configuration (default 10)")
    parser.add_argument("--hosts", type=int, default=2, help="emulated hosts (default 2)")
    parser.add_argument("--save", action="store_true", help="write bench/results/")
    return parser.parse_args(sys.argv[1:])


if __name__ == "__main__":
    main()
