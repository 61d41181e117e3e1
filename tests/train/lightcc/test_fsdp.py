"""FSDP2 with LightCC between hosts trains as one process does on all data."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from support.train_processes import RankPool
from taco_train.lightcc.fsdp import fsdp_hook

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
    return nn.Sequential(nn.Linear(8, 301), nn.ReLU(), nn.Linear(301, 300), nn.Linear(300, 3))


def batch(rank: int, step: int) -> Tensor:
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(10 * rank + step))


def steps(model: nn.Module, ranks: list[int]) -> list[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.cat([batch(rank, step) for rank in ranks])).square().mean().backward()
        optimizer.step()
    return [
        (one.full_tensor() if isinstance(one, DTensor) else one).detach().clone()
        for one in model.parameters()
    ]


def test_as_one_process(ranks: RankPool) -> None:
    expected = steps(make_model(), list(range(SIZE)))
    results = ranks.run(train)
    for result in results:
        for one, first, alone in zip(result, results[0], expected, strict=True):
            assert torch.equal(one, first)
            torch.testing.assert_close(one, alone, rtol=1e-4, atol=1e-5)


def train() -> list[Tensor]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("inter", "intra"))
    model = make_model()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh["intra"])
    fully_shard(model, mesh=mesh["intra"])
    fsdp_hook(model, mesh["inter"])
    return steps(model, [dist.get_rank()])


def test_models_that_cannot_be_hooked(ranks: RankPool) -> None:
    ranks.run(rejected)


def rejected() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("inter", "intra"))
    with pytest.raises(TypeError, match="needs a model of fully_shard, not Linear"):
        fsdp_hook(nn.Linear(1, 1), mesh["inter"])
    model = nn.Linear(4, 4)
    fully_shard(model, mesh=mesh["intra"])
    with pytest.raises(ValueError, match="a mesh of one dimension on the CPU, not of 2 on cpu"):
        fsdp_hook(model, mesh)
