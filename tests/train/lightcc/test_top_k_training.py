"""A transformer learns the demo model's data with TopK as it does with whole gradients."""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bench.train.learning import batch, held_out_loss, learning_rate_share, loss_of, started_model
from support.train_processes import RankPool
from taco_train.lightcc.ddp import ddp_hook, load_unsent_state, unsent_state

WIDTH, ROWS, LEARNING_RATE, MOMENTUM = 32, 4, 0.65, 0.9
STEPS, WARM_UP_STEPS = 500, 125  # of which TopK's ratio falls
HOSTS = ["a", "b"]
TOP_K = {"LIGHT_TOPK_ALLREDUCE": "1", "LIGHT_TOPK_THRESHOLD": "0", "LIGHT_2D_ALLREDUCE": "1"}


def start() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")


def learn(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    ranks: list[int],
    steps: range,
    num_steps: int = STEPS,
) -> list[float]:
    """The loss of each step on the rows of these ranks."""
    losses = []
    for step in steps:
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * learning_rate_share(step, num_steps)
        optimizer.zero_grad()
        rows = torch.cat([batch(step, rank, len(HOSTS), ROWS) for rank in ranks])
        loss = loss_of(model, rows)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def learn_in_ranks(started: dict[str, Tensor]) -> float:
    """LightCC's momentum correction takes the place of the optimizer's momentum."""
    model = started_model(WIDTH, steps=0)
    model.load_state_dict(started)
    hooked = DistributedDataParallel(model)
    ddp_hook(hooked)
    learn(hooked, torch.optim.SGD(model.parameters(), 1.0), [dist.get_rank()], range(STEPS))
    return held_out_loss(model)


def test_loss_is_that_of_whole_gradients() -> None:
    """On 2 hosts, at 1% of the gradients: at most 1% above one process with all rows."""
    settings = {"LIGHT_TOPK_MOMENTUM": "0.9", "LIGHT_TOPK_WARMUP_STEPS": str(WARM_UP_STEPS)}
    with RankPool(2, hosts=HOSTS, environment=TOP_K | settings) as pool:
        pool.run(start)
        model = started_model(WIDTH)
        pool.start(learn_in_ranks, model.state_dict())
        before = held_out_loss(model)
        optimizer = torch.optim.SGD(model.parameters(), 1.0, momentum=MOMENTUM)
        learn(model, optimizer, [0, 1], range(STEPS))
        dense = held_out_loss(model)
        compressed = [outcome.value for outcome in pool.finish()]
    assert dense < 0.93 * before
    assert compressed[0] == compressed[1]
    assert compressed[0] <= 1.01 * dense


def learn_some(first: int, last: int, saved: dict[str, Any] | None) -> dict[str, Any]:
    """Trains from a saved state, or from the start; returns losses and the state afterwards."""
    model = started_model(WIDTH, steps=0)
    optimizer = torch.optim.SGD(model.parameters(), 1.0, momentum=MOMENTUM)
    hooked = DistributedDataParallel(model)
    ddp_hook(hooked)
    if saved is not None:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        load_unsent_state(saved["unsent"])
    losses = learn(hooked, optimizer, [dist.get_rank()], range(first, last))
    return {
        "losses": losses,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "unsent": unsent_state(),
    }


def run_in_new_ranks(*arguments: Any) -> list[dict[str, Any]]:
    """`learn_some` in new processes, each with what it saved."""
    with RankPool(2, hosts=HOSTS, environment=TOP_K) as pool:
        pool.run(start)
        for rank, saved in enumerate(arguments[2]):
            pool.start(learn_some, *arguments[:2], saved, ranks=[rank])
        outcomes = pool.finish()
    assert all(outcome.is_good for outcome in outcomes), outcomes
    return [outcome.value for outcome in outcomes]


def test_loss_curve_continues_after_a_restart() -> None:
    """Residuals saved with the optimizer's state: the same bits as without the restart."""
    whole = run_in_new_ranks(0, 24, [None, None])
    first = run_in_new_ranks(0, 12, [None, None])
    second = run_in_new_ranks(12, 24, first)
    without = run_in_new_ranks(12, 24, [{**one, "unsent": {}} for one in first])
    for rank in range(2):
        assert first[rank]["losses"] + second[rank]["losses"] == whole[rank]["losses"]
        assert without[rank]["losses"] != second[rank]["losses"]


class Backwards(nn.Module):
    """DDP first makes buckets in the order of parameters, then in that of their gradients."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.last, self.middle, self.first = (nn.Linear(24, 24) for _ in range(3))

    def forward(self, rows: Tensor) -> Tensor:
        hidden: Tensor = self.last(self.middle(self.first(rows)).tanh())
        return hidden


def send_equal_gradients(num_steps: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """By parameter: sum of the averages, times the ranks, and what this rank has not sent."""
    model = DistributedDataParallel(Backwards())
    ddp_hook(model)
    rows = torch.randn(5, 24, generator=torch.Generator().manual_seed(dist.get_rank()))
    sums = {name: torch.zeros_like(one) for name, one in model.module.named_parameters()}
    for _ in range(num_steps):
        model.zero_grad()
        model(rows).square().sum().backward()
        for name, one in model.module.named_parameters():
            sums[name] += one.grad * dist.get_world_size()
    unsent: dict[str, Tensor] = {}
    for key, residual in unsent_state()["residuals"].items():
        _, names, sizes = json.loads(key)
        unsent |= dict(zip(names, residual["values"].split(sizes), strict=True))
    return sums, {name.partition(": ")[2]: values for name, values in unsent.items()}


def test_nothing_goes_to_other_parameters_when_buckets_are_made_again() -> None:
    num_steps = 4
    with RankPool(2, hosts=HOSTS, environment=TOP_K | {"LIGHT_TOPK_RATIO": "0.2"}) as pool:
        pool.run(start)
        results = pool.run(send_equal_gradients, num_steps)
    expected = {name: torch.zeros_like(values) for name, values in results[0][0].items()}
    for rank in range(2):
        model = Backwards()
        rows = torch.randn(5, 24, generator=torch.Generator().manual_seed(rank))
        model(rows).square().sum().backward()
        for name, one in model.named_parameters():
            assert one.grad is not None
            expected[name] += num_steps * one.grad
    for name, values in expected.items():
        sent = results[0][0][name]
        unsent = sum(result[1][name] for result in results)
        assert torch.equal(results[1][0][name], sent)
        torch.testing.assert_close(sent.flatten() + unsent, values.flatten(), rtol=1e-4, atol=1e-4)
