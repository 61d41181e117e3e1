"""Gradients of a real backward pass come in the same buckets in each step."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import taco_train.lightcc.horovod.torch as hvd
from support.train_processes import RankPool
from taco_train.lightcc.collective_runner import CollectiveRunner
from taco_train.lightcc.engine import Work
from taco_train.lightcc.negotiation.requests import Kind, Request

WIDTH, LAYERS, STEPS, SIZE = 192, 4, 7, 2


Result = tuple[list[str], list[list[tuple[str, ...]]], list[Tensor]]


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def loss_of(model: nn.Module, rank: int, step: int) -> Tensor:
    random = torch.Generator().manual_seed(100 * rank + step)
    return model(torch.randn(3, WIDTH, generator=random)).square().mean()


def train() -> Result:
    """What rank 0 logs of its plan, the buckets of each step, and the parameters."""
    hvd.init()
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("taco_train.lightcc.negotiation.bucket_planner")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    buckets: list[list[tuple[str, ...]]] = []
    run = CollectiveRunner.run

    def recorded(
        self: Any, requests: Sequence[Request], works: Sequence[Work | None], result: int
    ) -> None:
        if requests[0].kind is Kind.ALL_REDUCE:
            buckets[-1].append(tuple(request.name for request in requests))
        run(self, requests, works, result)

    CollectiveRunner.run = recorded  # type: ignore[method-assign]
    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1), model.named_parameters()
    )
    for step in range(STEPS):
        buckets.append([])
        optimizer.zero_grad()
        loss_of(model, hvd.rank(), step).backward()
        optimizer.step()
    hvd.shutdown()
    return lines, buckets, [one.detach() for one in model.parameters()]


@pytest.fixture(scope="module")
def results() -> list[Result]:
    with RankPool(SIZE, hosts=["a", "b"]) as pool:
        return pool.run(train)


def test_gradients_are_planned_and_all_ranks_have_the_same_buckets(results: list[Result]) -> None:
    (lines, buckets, parameters), (others_lines, others_buckets, others) = results
    assert f"{2 * LAYERS} gradients of float32 in " in lines[0]
    assert not others_lines  # rank 0 decides
    assert buckets == others_buckets
    names = sorted(f"allreduce.{name}" for name, _ in make_model().named_parameters())
    for step in buckets:
        assert sorted(name for bucket in step for name in bucket) == names
    for mine, theirs in zip(parameters, others, strict=True):
        assert torch.equal(mine, theirs)


def test_ranks_train_as_one_process(results: list[Result]) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        losses = torch.stack([loss_of(model, rank, step) for rank in range(SIZE)])
        losses.mean().backward()
        optimizer.step()
    for mine, one in zip(results[0][2], model.parameters(), strict=True):
        torch.testing.assert_close(mine, one.detach(), rtol=1e-4, atol=1e-6)
