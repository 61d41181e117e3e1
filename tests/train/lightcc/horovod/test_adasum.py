"""Adasum against its formula in float64; the optimizer combines updates."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import taco_train.lightcc.horovod.torch as hvd
from support.train_processes import RankPool


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    with RankPool(4) as pool:
        pool.run(hvd.init)
        yield pool


def vector(rank: int, size: int = 9) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)


def pair(a: Tensor, b: Tensor) -> Tensor:
    """Equation 1 of arXiv 2006.02924."""
    dot = float(a @ b)
    return (1 - dot / (2 * float(a @ a))) * a + (1 - dot / (2 * float(b @ b))) * b


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_pairs_of_pairs(ranks: RankPool, dtype: torch.dtype) -> None:
    vectors = [vector(rank).to(dtype).double() for rank in range(4)]
    expected = pair(pair(vectors[0], vectors[1]), pair(vectors[2], vectors[3]))
    results = ranks.run(combine, dtype)
    for result in results:
        assert torch.equal(result, results[0])
        torch.testing.assert_close(result.double(), expected, rtol=1e-2, atol=1e-2)


def combine(dtype: torch.dtype) -> Tensor:
    return hvd.allreduce(vector(hvd.rank()).to(dtype), op=hvd.Adasum)


def test_equal_gradients_stay_and_orthogonal_ones_add(ranks: RankPool) -> None:
    for equal, orthogonal, zeros in ranks.run(special):
        torch.testing.assert_close(equal, torch.arange(1.0, 4.0))
        torch.testing.assert_close(orthogonal, torch.ones(4))
        assert torch.equal(zeros, torch.zeros(2))


def special() -> tuple[Tensor, ...]:
    calls = torch.arange(1.0, 4.0), torch.eye(4)[hvd.rank()], torch.zeros(2)
    return tuple(hvd.allreduce(one, op=hvd.Adasum) for one in calls)


def test_integers_and_sets_of_three_are_errors(ranks: RankPool) -> None:
    with RankPool(3) as three:
        three.run(hvd.init)
        for text in three.run(fails, torch.float32):
            assert "needs a power of two as number of ranks, not 3" in text
    for text in ranks.run(fails, torch.int32):
        assert "needs floating-point values, not torch.int32" in text


def fails(dtype: torch.dtype) -> str:
    with pytest.raises(hvd.HorovodInternalError) as caught:
        hvd.allreduce(torch.ones(2, dtype=dtype), op=hvd.Adasum)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == hvd.size()  # the job continues
    return str(caught.value)


def test_an_optimizer_combines_updates(ranks: RankPool) -> None:
    results = ranks.run(train, [0, 1, 2, 3])
    expected = torch.ones(4) - 0.1  # updates of the ranks are orthogonal
    for result in results:
        torch.testing.assert_close(result, expected)


def test_an_optimizer_combines_updates_of_a_process_set(ranks: RankPool) -> None:
    _, _, third, fourth = results = ranks.run(train, [0, 1])
    torch.testing.assert_close(results[:2], [torch.tensor([0.9, 0.9, 1.0, 1.0])] * 2)
    torch.testing.assert_close([third, fourth], [1 - 0.1 * torch.eye(4)[one] for one in (2, 3)])


def train(members: list[int]) -> Tensor:
    model = nn.Linear(4, 1, bias=False)
    nn.init.ones_(model.weight)
    everyone = len(members) == hvd.size()
    process_set = hvd.global_process_set if everyone else hvd.add_process_set(members)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.1),
        model.named_parameters(),
        op=hvd.Adasum,
        process_set=process_set,
    )
    model(torch.eye(4)[hvd.rank()]).backward()
    optimizer.step()
    return model.weight.detach()[0]


def test_an_optimizer_combines_updates_of_added_parameters(ranks: RankPool) -> None:
    for result in ranks.run(train_added):
        torch.testing.assert_close(result, torch.ones(4) - 0.1)


def train_added() -> Tensor:
    """A scheduler is made before the optimizer is wrapped, too."""
    model = nn.Linear(4, 1, bias=False)
    nn.init.ones_(model.weight)
    plain = torch.optim.SGD([torch.zeros(1)], 0.1)
    torch.optim.lr_scheduler.StepLR(plain, 1)
    optimizer = hvd.DistributedOptimizer(plain, op=hvd.Adasum)
    optimizer.add_param_group({"params": list(model.parameters())})
    model(torch.eye(4)[hvd.rank()]).backward()
    optimizer.step()
    return model.weight.detach()[0]
