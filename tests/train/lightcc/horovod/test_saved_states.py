"""What TopK has not sent is saved with the optimizer, and loaded in jobs that are not the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import taco_train.lightcc.horovod.torch as hvd
from support.train_processes import RankPool
from taco_train.lightcc.horovod.exceptions import HostsUpdatedInterrupt

SHARED = ["a", "a", "b", "b"]
VARIABLES = {
    "LIGHT_2D_ALLREDUCE": "1",
    "LIGHT_TOPK_ALLREDUCE": "1",
    "LIGHT_TOPK_THRESHOLD": "0",
    "LIGHT_TOPK_WARMUP_STEPS": "10",
    "HOROVOD_FUSION_THRESHOLD": "0",
}


@dataclass
class Result:
    """Of one rank: how far parameters moved, and the optimizer's state."""

    moved: list[Tensor]
    state: dict[str, Any]


def gradients_of(rank: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(40, 30, generator=generator), torch.randn(40, generator=generator)]


def train(num_steps: int, state: dict[str, Any] | None, *, broadcasts: bool) -> Result:
    """Steps whose gradients are those of the rank at first, and zeros after a state is loaded."""
    hvd.init()
    model = nn.Linear(30, 40)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 1.0), model.named_parameters()
    )
    if state is not None:
        optimizer.load_state_dict(state)
    if broadcasts:
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    before = [one.detach().clone() for one in model.parameters()]
    is_new = state is None and not broadcasts
    for _ in range(num_steps):
        optimizer.zero_grad()
        gradients = gradients_of(hvd.rank())
        pairs = zip(model.parameters(), gradients, strict=True)
        torch.stack([(one * g).sum() * is_new for one, g in pairs]).sum().backward()
        optimizer.step()
    moved = [one.detach() - start for one, start in zip(model.parameters(), before, strict=True)]
    return Result(moved, optimizer.state_dict())


def run(
    num_steps: int,
    hosts: Sequence[str],
    ratio: str,
    states: Sequence[Any],
    *,
    broadcasts: bool = False,
) -> list[Result]:
    variables = {**VARIABLES, "LIGHT_TOPK_RATIO": ratio}
    with RankPool(len(hosts), hosts=hosts, environment=variables) as pool:
        for rank, state in enumerate(states):
            pool.start(train_with, num_steps, state, broadcasts, ranks=[rank])
        outcomes = pool.finish()
    assert all(one.is_good for one in outcomes), outcomes
    return [one.value for one in outcomes]


def train_with(num_steps: int, state: dict[str, Any] | None, broadcasts: bool) -> Result:
    return train(num_steps, state, broadcasts=broadcasts)


def test_nothing_is_lost_where_hosts_divide_the_ranks_otherwise() -> None:
    """Residuals belong to shards, which are others in the second job."""
    num_steps = 3
    first = run(num_steps, SHARED, "0.05", [None] * 4)
    states = [one.state for one in first]
    for hosts in (["a", "b", "c", "d"], ["a", "b", "a", "b"]):
        second = run(1, hosts, "1", states)
        for index in range(2):
            average = torch.stack([gradients_of(rank)[index] for rank in range(4)]).mean(0)
            moved = first[0].moved[index] + second[0].moved[index]
            torch.testing.assert_close(moved, -num_steps * average, rtol=1e-4, atol=1e-4)
            assert second[0].moved[index].any()
            for result in second:
                assert torch.equal(result.moved[index], second[0].moved[index])


def test_the_warm_up_continues_where_rank_0_alone_has_a_state() -> None:
    """Ranks must send equal shares: scripts often save on rank 0, and broadcast what it loads."""
    num_steps = 3
    first = run(num_steps, SHARED, "0.05", [None] * 4)
    second = run(1, SHARED, "0.05", [first[0].state, None, None, None], broadcasts=True)
    assert second[0].moved[0].count_nonzero() > 0
    for result in second:
        assert set(result.state["lightcc"]["steps"].values()) == {num_steps + 1}
        for mine, theirs in zip(result.moved, second[0].moved, strict=True):
            assert torch.equal(mine, theirs)


def test_a_state_of_another_number_of_ranks_is_ignored() -> None:
    first = run(2, SHARED, "0.05", [None] * 4)
    second = run(1, ["a", "b"], "0.05", [one.state for one in first[:2]])
    for result in second:
        assert all(not one.any() for one in result.moved)
        assert set(result.state["lightcc"]["steps"].values()) == {1}


def test_a_reset_of_an_elastic_job_loses_nothing() -> None:
    """After a failure the residuals are those of the commit; when hosts change, the last ones."""
    variables = {**VARIABLES, "LIGHT_TOPK_RATIO": "0.05"}
    with RankPool(2, hosts=["a", "b"], environment=variables) as pool:
        results = pool.run(train_with_resets)
    for kept, found in results:
        assert [set(one["steps"].values()) for one in found] == [{1}, {3}]
        for before, after in zip(kept, found, strict=True):
            assert after["steps"] == before["steps"]
            assert after["residuals"].keys() == before["residuals"].keys()
            for key, residual in before["residuals"].items():
                assert residual["values"].any()
                assert torch.equal(after["residuals"][key]["values"], residual["values"])


def train_with_resets() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What TopK has not sent before each of two resets, and after it."""
    hvd.init()
    model = nn.Linear(30, 40)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 1.0), model.named_parameters()
    )
    kept: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []

    def step() -> None:
        optimizer.zero_grad()
        pairs = zip(model.parameters(), gradients_of(hvd.rank()), strict=True)
        torch.stack([(one * gradient).sum() for one, gradient in pairs]).sum().backward()
        optimizer.step()

    @hvd.elastic.run
    def train_in_rounds(state: Any) -> None:
        if kept:
            found.append(optimizer.state_dict()["lightcc"])
        if len(found) == 2:
            return
        step()
        state.commit()
        if not kept:
            kept.append(optimizer.state_dict()["lightcc"])
        step()
        if not found:
            raise hvd.HorovodInternalError("a rank was lost")
        kept.append(optimizer.state_dict()["lightcc"])
        raise HostsUpdatedInterrupt

    with patch("taco_train.lightcc.horovod.elastic.run.is_elastic", return_value=True):
        train_in_rounds(hvd.elastic.TorchState(model, optimizer))
    return kept, found
