"""Training of a small model in ranks of torch's process group, and by one process on all data."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from support.train_processes import RankPool
from taco_train.lightcc.errors import CollectiveError

HOSTS = ("a", "a", "b", "b")


@contextmanager
def gloo_ranks(hosts: Sequence[str] = HOSTS) -> Iterator[RankPool]:
    """A pool whose ranks have a process group."""
    with RankPool(len(hosts), hosts=hosts) as pool:
        pool.run(_start)
        yield pool


def _start() -> None:
    dist.init_process_group("gloo")


def make_model(*widths: int) -> nn.Sequential:
    """The same parameters in each process: 8 inputs, hidden layers of these widths, 3 outputs."""
    torch.manual_seed(0)
    sizes = (8, *widths, 3)
    layers: list[nn.Module] = []
    for first, then in itertools.pairwise(sizes):
        layers += [nn.ReLU(), nn.Linear(first, then)]
    return nn.Sequential(*layers[1:])


def train(model: nn.Module, ranks: Sequence[int]) -> list[Tensor]:
    """Steps on the batches of these ranks; returns the parameters."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for step in range(4):
        optimizer.zero_grad()
        rows = torch.cat([_batch(rank, step) for rank in ranks])
        model(rows).square().mean().backward()
        optimizer.step()
    return [
        (one.full_tensor() if isinstance(one, DTensor) else one).detach().clone()
        for one in model.parameters()
    ]


def assert_as_one_process(results: Sequence[Sequence[Tensor]], *widths: int) -> None:
    """The ranks' parameters have the same bits, and are those of one process with all batches."""
    expected = train(make_model(*widths), range(len(results)))
    for result in results:
        for one, first, alone in zip(result, results[0], expected, strict=True):
            assert torch.equal(one, first)
            torch.testing.assert_close(one, alone, rtol=1e-4, atol=1e-5)


def lose_this_rank() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def assert_the_lost_rank_is_named(lose_rank_1: Callable[[], None]) -> None:
    """In two ranks of which the second is killed, the first one's backward pass says so."""
    with gloo_ranks(["a", "b"]) as pool:
        pool.start(lose_rank_1)
        left, lost = pool.finish()
    assert lost.exit_code == -signal.SIGKILL
    assert isinstance(left.error, CollectiveError), left
    assert str(left.error).startswith("rank 1 is gone")


def _batch(rank: int, step: int) -> Tensor:
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(10 * rank + step))
