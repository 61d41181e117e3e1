"""A rank of bench.train.gpu: what it checks and measures through Horovod's API."""

import json
import os
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.train.figures import summary
from bench.train.tasks import TASKS
from taco_train.lightcc.horovod import torch as hvd

# LIGHT_* variables by configuration.
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "flat": {"LIGHT_2D_ALLREDUCE": "0"},
    "2D": {"LIGHT_2D_ALLREDUCE": "1"},
    "2D + fp16": {"LIGHT_2D_ALLREDUCE": "1", "LIGHT_COMPRESSION": "fp16"},
    "2D + TopK": {"LIGHT_2D_ALLREDUCE": "1", "LIGHT_TOPK_ALLREDUCE": "1"},
}
_TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64)
_COUNTS = {"cuda": (1, 1000, 1_000_003, 8_388_608), "cpu": (1, 1000, 70_001)}
_MODELS = {"cuda": ("resnet50", "vgg16", "transformer"), "cpu": ("transformer",)}
_SIZES = {"resnet50": (64, 224), "vgg16": (32, 224), "transformer": (256, 256)}
_MAX_ROUNDS = {"cuda": 10, "cpu": 2}
_OFF = "communication off"


def run_part(part: str, device: str, seconds: float, file: Path) -> None:
    """Runs in every rank; rank 0 leaves the figures in the file."""
    torch.set_num_threads(1)
    figures = {"collectives": collectives, "synthetic": synthetic}[part](device, seconds)
    if os.environ["RANK"] == "0":
        file.write_text(json.dumps(figures))


@contextmanager
def job(settings: Mapping[str, str]) -> Iterator[None]:
    """Horovod with some variables set."""
    for name in [name for name in os.environ if name.startswith("LIGHT_")]:
        del os.environ[name]
    os.environ.update(settings)
    hvd.init()
    try:
        yield
    finally:
        hvd.shutdown()


def collectives(device: str, seconds: float) -> dict[str, Any]:
    """Compares sums with a float64 reference, and times those of float32.

    Raises:
        AssertionError: a result is wrong.
    """
    found: dict[str, Any] = {}
    for name, settings in SETTINGS.items():
        with job(settings):
            for dtype in _TYPES:
                for count in _COUNTS[device]:
                    _check(name, dtype, count, device)
            count = max(_COUNTS[device])
            tensor = torch.ones(count, device=device)
            times = [_timed(tensor) for _ in range(8)][2:]
            found[name] = {
                "checked": len(_TYPES) * len(_COUNTS[device]),
                "bytes": tensor.nbytes,
                "milliseconds": 1e3 * statistics.median(times),
            }
            if hvd.rank() == 0:
                print(
                    f"{name}: right; {tensor.nbytes} bytes in {found[name]['milliseconds']:.2f} ms"
                )
    return found


def synthetic(device: str, seconds: float) -> dict[str, Any]:
    """Speed of each configuration; they take turns until the time is over."""
    found: dict[str, Any] = {}
    models = _MODELS[device]
    for model in models:
        speeds: dict[str, list[float]] = {name: [] for name in (_OFF, *SETTINGS)}
        deadline = time.monotonic() + seconds / len(models)
        rounds = 0
        while rounds < _MAX_ROUNDS[device]:
            for name in speeds:
                speeds[name].append(_speed(model, name, device))
            rounds += 1
            # All ranks stop after the same round.
            with job({}):
                late = torch.tensor([float(time.monotonic() > deadline)])
                if hvd.allreduce(late, op=hvd.Max).item():
                    break
        found[model] = {"unit": TASKS[model].unit, "speeds": speeds}
        if os.environ["RANK"] == "0":
            _show(model, device, found[model])
    return found


def _check(name: str, dtype: torch.dtype, count: int, device: str) -> None:
    """Sums: exact for small integers, which all formats hold; TopK sends the largest first."""
    generator = torch.Generator().manual_seed(count)
    values = [
        torch.randint(-8, 9, (count,), generator=generator).to(dtype) for _ in range(hvd.size())
    ]
    result = hvd.allreduce(values[hvd.rank()].to(device), op=hvd.Sum, name=f"{dtype} {count}").cpu()
    expected = torch.stack([one.double() for one in values]).sum(0)
    is_whole = "TopK" not in name or dtype != torch.float32 or 4 * count < 1 << 20
    if not is_whole:  # what is sent is part of the sum, and something is
        sent = result.double()
        assert 0 < int((sent != 0).sum()) <= 0.03 * hvd.size() * count, name
        return
    assert torch.equal(result.double(), expected), f"{name}, {dtype}, {count} values"


def _timed(tensor: Tensor) -> float:
    hvd.allreduce_(tensor, op=hvd.Average, name="timed")
    _synchronize(tensor)
    begun = time.perf_counter()
    hvd.allreduce_(tensor, op=hvd.Average, name="timed")
    _synchronize(tensor)
    return time.perf_counter() - begun


def _synchronize(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize()


def _speed(model: str, name: str, device: str) -> float:
    """Samples a second and rank of one iteration."""
    task = TASKS[model]
    batch_size, size = _SIZES[model] if device == "cuda" else (2, 16)
    num_batches = 10 if device == "cuda" else 1
    torch.manual_seed(0)
    with job(SETTINGS.get(name, {})):
        made = task.make(size).to(device)
        optimizer: Any = torch.optim.SGD(made.parameters(), lr=0.01)
        if name != _OFF:
            optimizer = hvd.DistributedOptimizer(
                optimizer, named_parameters=made.named_parameters()
            )
        inputs, labels = (one.to(device) for one in task.batch(batch_size, size))

        def step() -> None:
            optimizer.zero_grad()
            logits = made(inputs)
            F.cross_entropy(logits.flatten(0, -2), labels.flatten()).backward()
            optimizer.step()

        for _ in range(max(1, num_batches // 3)):
            step()
        _synchronize(inputs)
        hvd.barrier()
        begun = time.perf_counter()
        for _ in range(num_batches):
            step()
        _synchronize(inputs)
        slowest = hvd.allreduce(torch.tensor([time.perf_counter() - begun]), op=hvd.Max).item()
    return batch_size * num_batches / slowest


def _show(model: str, device: str, found: Mapping[str, Any]) -> None:
    size, unit = int(os.environ["WORLD_SIZE"]), found["unit"]
    where = "GPU" if device == "cuda" else "CPU"
    for name, speeds in found["speeds"].items():
        mean, spread = summary(speeds)
        print(
            f"{model}, {name}: {unit}/sec per {where} rank: {mean:.1f} +-{spread:.1f}, total of "
            f"{size} ranks: {size * mean:.1f} +-{size * spread:.1f}",
            flush=True,
        )
