"""A small transformer that learns the demo model's data, from a start that is equal everywhere.

It starts with some steps of AdamW on all data in one process, as compressed training starts with
dense steps (DGC warms up, and PowerSGD's hook waits for 1,000 steps by default).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.train import text
from bench.train.models.transformer import Shape, Transformer

LENGTH = 64
MOMENTUM = 0.9
_START_STEPS, _START_ROWS, _START_RATE = 250, 8, 4e-3
_WARM_UP_STEPS, _LAST_SHARE = 20, 0.1  # of the learning rate
_HELD_OUT_ROWS = 256
# Seeds of rows: batches of steps are below.
_START_SEED, _HELD_OUT_SEED = 10**6, 2 * 10**6


def started_model(width: int, steps: int = _START_STEPS) -> Transformer:
    """The model after its dense start: the same bits in every process of a machine."""
    torch.manual_seed(0)
    model = Transformer(Shape(text.NUM_TOKENS, LENGTH, width, layers=2, heads=2))
    optimizer = torch.optim.AdamW(model.parameters(), _START_RATE, betas=(0.9, 0.98))
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = _START_RATE * learning_rate_share(step, steps)
        optimizer.zero_grad()
        loss_of(model, text.rows(_START_SEED + step, _START_ROWS, LENGTH)).backward()
        optimizer.step()
    return model


def loss_of(model: nn.Module, rows: Tensor) -> Tensor:
    """Mean cross entropy of rows, shape (count, LENGTH + 1)."""
    logits = model(rows[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def batch(step: int, rank: int, size: int, count: int) -> Tensor:
    """The rows of a rank in a step: others than those of all other ranks and steps."""
    return text.rows(step * size + rank, count, LENGTH)


def held_out_loss(model: nn.Module) -> float:
    """Over rows that no step has drawn; they may overlap rows that were."""
    with torch.no_grad():
        return loss_of(model, text.rows(_HELD_OUT_SEED, _HELD_OUT_ROWS, LENGTH)).item()


def learning_rate_share(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to a tenth."""
    cosine = (1 + math.cos(math.pi * step / steps)) / 2
    return min(1.0, (step + 1) / _WARM_UP_STEPS) * (_LAST_SHARE + (1 - _LAST_SHARE) * cosine)
