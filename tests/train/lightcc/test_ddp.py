"""DistributedDataParallel with LightCC's hook trains as one process does on all data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from support.hooked_training import (
    assert_as_one_process,
    assert_the_lost_rank_is_named,
    gloo_ranks,
    lose_this_rank,
    make_model,
    train,
)
from support.train_processes import RankPool
from taco_train.cluster.store import RendezvousError
from taco_train.lightcc.ddp import ddp_hook
from taco_train.lightcc.process_group import connect_process_group
from taco_train.lightcc.settings import Settings

WIDTHS = 800, 800


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    with gloo_ranks() as pool:
        yield pool


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compiled": True},
        {"static_graph": True},
        {"find_unused_parameters": True, "gradient_as_bucket_view": True},
    ],
    ids=",".join,
)
def test_as_one_process(ranks: RankPool, options: dict[str, Any]) -> None:
    assert_as_one_process(ranks.run(train_hooked, options), *WIDTHS)


def train_hooked(options: dict[str, Any]) -> list[Tensor]:
    is_compiled = options.pop("compiled", False)
    model = DistributedDataParallel(make_model(*WIDTHS), bucket_cap_mb=1, **options)
    ddp_hook(model)
    if is_compiled:
        model.compile(backend="aot_eager")
    return train(model, [dist.get_rank()])


def test_uneven_inputs(ranks: RankPool) -> None:
    """Ranks that are done contribute zeros, which count in the average."""
    results = ranks.run(train_unevenly)
    # All four in the first step, ranks 1 to 3 in the second, and so on.
    assert results == [-(4 + 3 + 2 + 1) / 4] * 4


def train_unevenly() -> float:
    model = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    nn.init.zeros_(model.module.weight)
    ddp_hook(model)
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    with model.join():
        for _ in range(dist.get_rank() + 1):
            optimizer.zero_grad()
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
    return float(model.module.weight.item())


def test_a_lost_rank_is_an_error_of_the_backward_pass() -> None:
    assert_the_lost_rank_is_named(lose_a_rank)


def lose_a_rank() -> None:
    model = DistributedDataParallel(make_model(4))
    ddp_hook(model)
    if dist.get_rank() == 1:
        lose_this_rank()
    train(model, [0])


def test_ranks_that_no_launcher_has_numbered(ranks: RankPool) -> None:
    """As those of torch.multiprocessing.spawn, which call init_process_group with a number."""
    assert ranks.run(connect_unnumbered) == [4.0] * 4


def connect_unnumbered() -> float:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            patch.delenv(name)
        communicator = connect_process_group(Settings(), "unnumbered")
    total = torch.ones(1)
    communicator.all_reduce(total)
    communicator.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORLD_SIZE", "8")
        with pytest.raises(RendezvousError, match=r"of 4 in torch's .* but rank . of 8"):
            connect_process_group(Settings(), "other numbers")
    return total.item()


def test_models_that_cannot_be_hooked(ranks: RankPool) -> None:
    ranks.run(refused)


def refused() -> None:
    with pytest.raises(TypeError, match="needs a DistributedDataParallel model, not Linear"):
        ddp_hook(nn.Linear(1, 1))  # type: ignore[arg-type]
    some = dist.new_group([0, 1])
    if dist.get_rank() < 2:
        with pytest.raises(ValueError, match="needs the process group of all ranks"):
            ddp_hook(DistributedDataParallel(nn.Linear(1, 1), process_group=some))
    with pytest.raises(ValueError, match=r"parameter weight: tensors of torch.complex64"):
        ddp_hook(DistributedDataParallel(nn.Linear(1, 1, dtype=torch.complex64)))
    sparse = nn.Sequential(nn.Embedding(3, 1, sparse=True))
    with pytest.raises(ValueError, match="layer 0: its gradient is sparse; set sparse=False"):
        ddp_hook(DistributedDataParallel(sparse))
    model = DistributedDataParallel(nn.Linear(1, 1))
    ddp_hook(model)
    with pytest.raises(ValueError, match="has LightCC's hook already"):
        ddp_hook(model)
