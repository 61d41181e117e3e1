"""DistributedOptimizer trains as one process does on all data; states are the same on all ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import taco_train.lightcc.horovod.torch as hvd
from support.train_processes import RankPool

SIZE, STEPS, ROWS = 3, 4, 5


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    with RankPool(SIZE) as pool:
        pool.run(hvd.init)
        yield pool


def make_model(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2)
    )


def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(100 * rank + step)
    return torch.randn(ROWS, 6, generator=random), torch.randn(ROWS, 2, generator=random)


def loss_of(model: nn.Module, rank: int, step: int) -> Tensor:
    rows, wanted = batch(rank, step)
    return nn.functional.mse_loss(model(rows), wanted)


def train_alone(scale: float = 1.0, passes: int = 1) -> list[Tensor]:
    """All ranks' batches in one process."""
    model = make_model(0)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        for one in range(passes):
            losses = [loss_of(model, rank, step * passes + one) for rank in range(SIZE)]
            (sum(losses) * scale / SIZE).backward()  # type: ignore[union-attr]
        optimizer.step()
    return [one.detach() for one in model.parameters()]


@pytest.mark.parametrize(
    ("options", "scale", "passes"),
    [
        ({}, 1.0, 1),
        ({"op": "Sum"}, SIZE, 1),
        ({"num_groups": 2}, 1.0, 1),
        ({"groups": "first and last"}, 1.0, 1),
        ({"gradient_predivide_factor": 4.0}, 1.0, 1),
        ({"backward_passes_per_step": 2}, 1.0, 2),
        ({"named": False}, 1.0, 1),
        ({"compression": "fp16"}, 1.0, 1),
    ],
)
def test_ranks_train_as_one_process(
    ranks: RankPool, options: dict[str, Any], scale: float, passes: int
) -> None:
    expected = train_alone(scale, passes)
    results = ranks.run(train, options)
    tolerance = 2e-2 if "compression" in options else 1e-5
    for result in results:
        for one, first, alone in zip(result, results[0], expected, strict=True):
            assert torch.equal(one, first)
            torch.testing.assert_close(one, alone, rtol=tolerance, atol=tolerance)


def train(options: dict[str, Any]) -> list[Tensor]:
    model = make_model(hvd.rank())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = wrap(model, torch.optim.Adam(model.parameters(), 0.01), **options)
    passes = options.get("backward_passes_per_step", 1)
    for step in range(STEPS):
        optimizer.zero_grad()
        for one in range(passes):
            loss_of(model, hvd.rank(), step * passes + one).backward()
        optimizer.step()
    return [one.detach() for one in model.parameters()]


def wrap(model: nn.Sequential, optimizer: torch.optim.Optimizer, **options: Any) -> Any:
    names = model.named_parameters() if options.pop("named", True) else None
    if "op" in options:
        options["op"] = getattr(hvd, options["op"])
    if "compression" in options:
        options["compression"] = getattr(hvd.Compression, options["compression"])
    if "groups" in options:
        options["groups"] = [list(model[0].parameters()), [model[4].weight]]
    return hvd.DistributedOptimizer(optimizer, named_parameters=names, **options)


def test_the_optimizer_keeps_its_class_options_and_schedulers(ranks: RankPool) -> None:
    ranks.run(keeps_its_class)


def keeps_its_class() -> None:
    model = make_model(0)
    plain = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
    optimizer = wrap(model, plain)
    assert isinstance(optimizer, torch.optim.SGD)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1)
    loss_of(model, 0, 0).backward()
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    assert optimizer.state_dict()["param_groups"][0]["momentum"] == 0.9


def first_weight(model: nn.Sequential) -> nn.Parameter:
    return next(model.parameters())


def average_gradient(model: nn.Sequential) -> Tensor:
    """Of the first layer's weight, over the ranks' first batches."""
    loss = torch.stack([loss_of(model, rank, 0) for rank in range(SIZE)]).mean()
    (gradient,) = torch.autograd.grad(loss, [first_weight(model)])
    return gradient


def test_a_scheduler_made_before_the_optimizer_is_wrapped(ranks: RankPool) -> None:
    expected = -0.5 * average_gradient(make_model(0))
    for move, rate in ranks.run(step_with_an_earlier_scheduler):
        torch.testing.assert_close(move, expected)
        assert rate == pytest.approx(0.05)


def step_with_an_earlier_scheduler() -> tuple[Tensor, float]:
    """How far the first layer's weight moves, and the learning rate afterwards."""
    model = make_model(0)
    before = first_weight(model).detach().clone()
    plain = torch.optim.SGD(model.parameters(), 0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, 0.1)
    optimizer = wrap(model, plain)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)  # loads a state on the other ranks
    loss_of(model, hvd.rank(), 0).backward()
    optimizer.step()
    scheduler.step()
    return first_weight(model).detach() - before, optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("change", ["unfreeze", "add_param_group"])
def test_parameters_that_come_after_the_optimizer_is_wrapped(ranks: RankPool, change: str) -> None:
    results = ranks.run(train_more_parameters, change)
    for first, second in results:
        torch.testing.assert_close(first, -average_gradient(make_model(0)))
        assert torch.equal(second, results[0][1])


def train_more_parameters(change: str) -> list[Tensor]:
    """How far the first layer's weight moves in each of two steps."""
    model = make_model(0)
    weight = first_weight(model)
    others = [one for one in model.parameters() if one is not weight]
    weight.requires_grad_(False)
    given = others if change == "add_param_group" else model.parameters()
    optimizer = wrap(model, torch.optim.SGD(given, 1.0))
    if change == "add_param_group":
        optimizer.add_param_group({"params": [weight]})
    weight.requires_grad_(True)
    moves = []
    for step in range(2):
        before = weight.detach().clone()
        optimizer.zero_grad()
        loss_of(model, hvd.rank(), step).backward()
        optimizer.step()
        moves.append(weight.detach() - before)
    return moves


def test_gradients_of_a_closure_are_combined(ranks: RankPool) -> None:
    expected = train_alone()
    for result in ranks.run(train_with_a_closure):
        for one, alone in zip(result, expected, strict=True):
            torch.testing.assert_close(one, alone, rtol=1e-5, atol=1e-5)


def train_with_a_closure() -> list[Tensor]:
    model = make_model(0)
    optimizer = wrap(model, torch.optim.Adam(model.parameters(), 0.01))
    for step in range(STEPS):

        def loss_and_gradients(step: int = step) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, hvd.rank(), step)
            loss.backward()
            return loss

        assert optimizer.step(loss_and_gradients) > 0
    return [one.detach() for one in model.parameters()]


def test_one_rank_may_accumulate_gradients() -> None:
    with RankPool(1) as pool:
        (weight,) = pool.run(accumulate)
    model = make_model(0)
    for step in range(2):
        loss_of(model, 0, step).backward()
    gradient = first_weight(model).grad
    assert gradient is not None
    torch.testing.assert_close(weight, first_weight(model).detach() - gradient)


def accumulate() -> Tensor:
    hvd.init()
    model = make_model(0)
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), 1.0))
    for step in range(2):
        loss_of(model, 0, step).backward()
    optimizer.step()
    return first_weight(model).detach()


def test_clipping_between_synchronize_and_step(ranks: RankPool) -> None:
    norms = ranks.run(clip)
    assert len(set(norms)) == 1
    assert all(
        "the gradients are combined again" in one for one in ranks.run(step_after_synchronize)
    )


def clip() -> float:
    model = make_model(0)
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.1))
    loss_of(model, hvd.rank(), 0).backward()
    optimizer.synchronize()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    with optimizer.skip_synchronize():
        optimizer.step()
    return norm.item()


def step_after_synchronize() -> str:
    model = make_model(0)
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), 0.1))
    loss_of(model, hvd.rank(), 0).backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="the gradients are combined again") as caught:
        optimizer.step()
    return str(caught[0].message)


def test_a_gradient_that_only_some_ranks_compute(ranks: RankPool) -> None:
    results = ranks.run(partly_used)
    assert all(one == results[0] for one in results)


def partly_used() -> list[float]:
    model = nn.ModuleList([nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)])
    with torch.no_grad():
        for one in model.parameters():
            one.fill_(1.0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 1.0), model.named_parameters()
    )
    model[hvd.rank() % 2](torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return [one.item() for parameter in model.parameters() for one in parameter[0]]


@pytest.mark.parametrize("optimizer_class", [torch.optim.SGD, torch.optim.SparseAdam])
def test_sparse_gradients(
    ranks: RankPool, optimizer_class: Callable[..., torch.optim.Optimizer]
) -> None:
    """SparseAdam takes sparse gradients only, so they stay sparse where dense ones were sent."""
    for sparse, dense, grouped in ranks.run(embed, optimizer_class):
        torch.testing.assert_close(sparse, dense)
        torch.testing.assert_close(sparse, grouped)


def embed(optimizer_class: Callable[..., torch.optim.Optimizer]) -> list[Tensor]:
    results = []
    for settings in ({}, {"sparse_as_dense": True}, {"num_groups": 1}):
        torch.manual_seed(0)
        layers = [nn.Embedding(10, 3, sparse=True) for _ in range(2)]
        model = nn.ModuleList(layers)
        optimizer = hvd.DistributedOptimizer(
            optimizer_class(list(model.parameters()), lr=0.1), model.named_parameters(), **settings
        )
        tokens = torch.tensor([hvd.rank(), hvd.rank() + 1])
        torch.cat([one(tokens) for one in layers]).square().sum().backward()
        optimizer.step()
        results.append(torch.cat([one.weight.detach() for one in layers]))
    return results


def test_states_are_the_root_s(ranks: RankPool) -> None:
    results = ranks.run(broadcast_states)
    for result in results:
        assert result["param_groups"] == results[0]["param_groups"]
        for number, state in results[0]["state"].items():
            for name, value in state.items():
                assert torch.equal(result["state"][number][name], value)


def broadcast_states() -> dict[str, Any]:
    model = make_model(hvd.rank())
    optimizer = torch.optim.Adam(model.parameters(), 0.01 * (hvd.rank() + 1))
    if hvd.rank() == 1:
        loss_of(model, 0, 0).backward()
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, root_rank=1)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.02)
    return copy.deepcopy(optimizer.state_dict())


def test_synchronized_batch_norm(ranks: RankPool) -> None:
    alone = nn.BatchNorm2d(3)
    images = torch.cat([images_of(rank) for rank in range(SIZE)]).requires_grad_()
    expected = alone(images)
    (expected * torch.arange(expected.numel()).view_as(expected)).sum().backward()
    assert images.grad is not None
    results = ranks.run(normalize)
    torch.testing.assert_close(torch.cat([one[0] for one in results]), expected.detach())
    torch.testing.assert_close(
        torch.cat([one[1] for one in results]), images.grad, rtol=1e-3, atol=1e-2
    )
    for _, _, mean, variance in results:
        torch.testing.assert_close(mean, alone.running_mean)
        torch.testing.assert_close(variance, alone.running_var)


def test_synchronized_batch_norm_keeps_64_bits(ranks: RankPool) -> None:
    rows = torch.cat([far_rows_of(rank) for rank in range(SIZE)])
    expected = nn.BatchNorm1d(3).double()(rows)
    found = torch.cat(ranks.run(normalize_far_rows))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def far_rows_of(rank: int) -> Tensor:
    random = torch.Generator().manual_seed(rank)
    return torch.randn(4, 3, dtype=torch.float64, generator=random) + 1e4


def normalize_far_rows() -> Tensor:
    result: Tensor = hvd.SyncBatchNorm(3).double()(far_rows_of(hvd.rank()))
    return result.detach()


def images_of(rank: int) -> Tensor:
    return torch.randn(rank + 1, 3, 2, 2, generator=torch.Generator().manual_seed(rank)) * 3 + 1


def normalize() -> tuple[Any, ...]:
    rank = hvd.rank()
    layer = hvd.SyncBatchNorm(3)
    images = images_of(rank).requires_grad_()
    result = layer(images)
    start = sum(images_of(other).numel() for other in range(rank))
    (result * torch.arange(start, start + result.numel()).view_as(result)).sum().backward()
    assert images.grad is not None
    return result.detach(), images.grad, layer.running_mean, layer.running_var


def test_options_that_are_wrong() -> None:
    model = make_model(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "needs op=Average"),
        ({"backward_passes_per_step": 0}, "backward_passes_per_step is 0; it must be 1 or more"),
        ({"named_parameters": [("a", model[0].weight)]}, "lacks 5 of the optimizer's parameters"),
        ({"named_parameters": [("a", one) for one in model.parameters()]}, "repeated: a"),
        ({"named_parameters": list(model.parameters())}, "pairs of names and tensors"),
        ({"groups": [[model[0].weight], [model[0].weight]]}, "in one group only"),
        ({"named_parameters": model}, "such as model.named_parameters\\(\\), not Sequential"),
        ({"groups": [3]}, "groups must be a number, or lists of parameters"),
        ({"gradient_predivide_factor": 0}, "gradient_predivide_factor is 0; it must be above 0"),
        ({"backward_passes_per_step": 1.5}, "backward_passes_per_step is 1.5; it must be 1 or"),
        ({"op": 17}, "op is 17; it must be one of"),
        ({"process_set": hvd.ProcessSet([0])}, "is not registered: pass it to hvd.add_process_set"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            hvd.DistributedOptimizer(optimizer, **options)
    with pytest.raises(TypeError, match=r"compression is 'fp16'; it must be hvd\.Comp"):
        hvd.DistributedOptimizer(optimizer, compression="fp16")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="an optimizer of torch is needed, not Sequential"):
        hvd.DistributedOptimizer(model)  # type: ignore[arg-type]
