"""DistributedDataParallel with LightCC's hook trains as one process does on all data."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from support.train_processes import RankPool
from taco_train.lightcc.ddp import ddp_hook

SIZE = 4


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    with RankPool(SIZE, hosts=["a", "a", "b", "b"]) as pool:
        pool.run(start)
        yield pool


def start() -> None:
    dist.init_process_group("gloo")


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 800), nn.ReLU(), nn.Linear(800, 800), nn.Linear(800, 3))


def batch(rank: int, step: int) -> Tensor:
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(10 * rank + step))


def steps(model: nn.Module, ranks: list[int]) -> list[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.cat([batch(rank, step) for rank in ranks])).square().mean().backward()
        optimizer.step()
    return [one.detach().clone() for one in model.parameters()]


@pytest.mark.parametrize("compiled", [False, True])
def test_as_one_process(ranks: RankPool, compiled: bool) -> None:
    expected = steps(make_model(), list(range(SIZE)))
    results = ranks.run(train, compiled)
    for result in results:
        for one, first, alone in zip(result, results[0], expected, strict=True):
            assert torch.equal(one, first)
            torch.testing.assert_close(one, alone, rtol=1e-4, atol=1e-5)


def train(compiled: bool) -> list[Tensor]:
    model = DistributedDataParallel(make_model(), bucket_cap_mb=1)
    ddp_hook(model)
    if compiled:
        model.compile(backend="aot_eager")
    return steps(model, [dist.get_rank()])


def test_models_that_cannot_be_hooked(ranks: RankPool) -> None:
    ranks.run(refused)


def refused() -> None:
    with pytest.raises(TypeError, match="needs a DistributedDataParallel model, not Linear"):
        ddp_hook(nn.Linear(1, 1))  # type: ignore[arg-type]
    some = dist.new_group([0, 1])
    if dist.get_rank() < 2:
        with pytest.raises(ValueError, match="needs the process group of all ranks"):
            ddp_hook(DistributedDataParallel(nn.Linear(1, 1), process_group=some))
    model = DistributedDataParallel(nn.Linear(1, 1))
    ddp_hook(model)
    with pytest.raises(ValueError, match="has LightCC's hook already"):
        ddp_hook(model)
