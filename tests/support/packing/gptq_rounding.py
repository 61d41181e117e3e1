"""Rounds matrices as GPTQ does, with the inputs that they get on texts (arXiv 2210.17323)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from support.packing.integers import Integers

_DAMPING = 0.01  # of the mean of the diagonal, as in the paper
_SHRINKS = torch.linspace(0.7, 1.0, 16)


def gptq_rounded(weight: Tensor, products: Tensor, bits: int, group: int) -> Integers:
    """The symmetric codes of a matrix [n, k], in groups of adjacent columns.

    Column by column, the error of each is made up for by the columns that are not rounded yet
    (algorithm 1 of the paper).

    Args:
        products: float [k, k], the sum of the outer products of the matrix's inputs.
    """
    n, k = weight.shape
    rest = weight.double().clone()
    factor = _inverse_factor(products.double())
    middle = 2 ** (bits - 1)
    codes = np.empty((n, k), np.int64)
    scales = torch.empty(n, -(-k // group), dtype=torch.float16)
    for column in range(k):
        number = column // group
        if column % group == 0:
            importance = 1 / factor.diagonal()[column : column + group].square()
            scales[:, number] = _scales(rest[:, column : column + group], importance, middle)
        scale = scales[:, number].double()
        rounded = (rest[:, column] / scale).round().clamp(-middle, middle - 1)
        codes[:, column] = rounded.long().numpy() + middle
        error = (rest[:, column] - rounded * scale) / factor[column, column]
        rest[:, column:] -= error[:, None] * factor[column, column:]
    zeros = np.full(tuple(scales.shape), middle)
    return Integers(bits, codes, zeros, scales, np.arange(k) // group)


def _inverse_factor(products: Tensor) -> Tensor:
    """The upper Cholesky factor of the inverse of the damped products."""
    damped = products + torch.eye(len(products)).double() * products.diagonal().mean() * _DAMPING
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    return torch.linalg.cholesky(inverse, upper=True)


def _scales(part: Tensor, importance: Tensor, middle: int) -> Tensor:
    """The scales of rows [n, group] with the least squared error, weighted by column."""
    best = torch.full((len(part),), torch.inf).double()
    chosen = torch.ones(len(part), dtype=torch.float16)
    for shrink in _SHRINKS:
        scales = (part.abs().amax(1) * shrink / (middle - 0.5)).clamp(min=1e-7).half()
        wide = scales.double()[:, None]
        rounded = (part / wide).round().clamp(-middle, middle - 1) * wide
        errors = ((part - rounded).square() * importance).sum(1)
        chosen = torch.where(errors < best, scales, chosen)
        best = torch.minimum(errors, best)
    return chosen


@contextmanager
def summed_products(modules: dict[str, nn.Linear]) -> Iterator[dict[str, Tensor]]:
    """Sum the outer products of the inputs of `modules`, by name, while their model runs."""
    sums = {
        name: torch.zeros(module.in_features, module.in_features)
        for name, module in modules.items()
    }

    def hook(name: str) -> Any:
        def add(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            rows = inputs[0].flatten(0, -2).float()
            sums[name] += rows.T @ rows

        return add

    handles = [module.register_forward_pre_hook(hook(name)) for name, module in modules.items()]
    try:
        yield sums
    finally:
        for handle in handles:
            handle.remove()


def round_model(model: Any, texts: Tensor, bits: int, group: int) -> dict[str, Integers]:
    """Round the linear layers of a Llama of transformers in place, layer after layer.

    Each sees the inputs that the rounded layers before it give.

    Args:
        texts: token ids [count, tokens].

    Returns:
        The codes by the names of modules.
    """
    found: dict[str, Integers] = {}
    for index, layer in enumerate(model.model.layers):
        modules = {
            f"model.layers.{index}.{name}": module
            for name, module in layer.named_modules()
            if isinstance(module, nn.Linear)
        }
        with torch.no_grad(), summed_products(modules) as sums:
            model(texts, use_cache=False)
        for name, module in modules.items():
            found[name] = gptq_rounded(module.weight, sums[name], bits, group)
            module.weight.data = found[name].values.to(module.weight.dtype)
    return found
