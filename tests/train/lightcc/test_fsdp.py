"""FSDP2 with LightCC between hosts trains as one process does on all data."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from support.hooked_training import (
    assert_as_one_process,
    assert_the_lost_rank_is_named,
    gloo_ranks,
    lose_this_rank,
    make_model,
    train,
)
from support.train_processes import RankPool
from taco_train.lightcc.fsdp import fsdp_hook

WIDTHS = 301, 300


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    with gloo_ranks() as pool:
        yield pool


def test_as_one_process(ranks: RankPool) -> None:
    assert_as_one_process(ranks.run(train_sharded), *WIDTHS)


def train_sharded() -> list[Tensor]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("inter", "intra"))
    model = make_model(*WIDTHS)
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh["intra"])
    fully_shard(model, mesh=mesh["intra"])
    fsdp_hook(model, mesh["inter"])
    return train(model, [dist.get_rank()])


def test_a_lost_rank_is_an_error_of_the_backward_pass() -> None:
    assert_the_lost_rank_is_named(lose_a_rank)


def lose_a_rank() -> None:
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("inter", "intra"))
    model = make_model(4)
    fully_shard(model, mesh=mesh["intra"])
    fsdp_hook(model, mesh["inter"])
    if dist.get_rank() == 1:
        lose_this_rank()
    train(model, [0])


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
    with pytest.raises(TypeError, match="needs a DeviceMesh, not NoneType"):
        fsdp_hook(model, None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"hold other shards of weight: pass the other dimension"):
        fsdp_hook(model, mesh["intra"])
    fsdp_hook(model, mesh["inter"])
    with pytest.raises(ValueError, match="has LightCC's hook already"):
        fsdp_hook(model, mesh["inter"])
