"""Rounds the matrices of a Llama to few bits by GPTQ (Frantar et al. 2022, algorithm 1).

A matrix is rounded column by column. The error of a column, as its inputs on some text weigh it,
is compensated by the columns that are not rounded yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.engine.int8.llama import SmallLlama

# Share of the mean diagonal that is added to the diagonal of the second moments.
_DAMPING = 0.01
_CODES = 16


@dataclass(frozen=True, slots=True)
class RoundedMatrix:
    """Codes, int32 [n, k] from 0 to 15 around 8, and scales, float16 [n, groups]."""

    codes: Tensor
    scales: Tensor


def rounded_to_nearest(model: SmallLlama, group_size: int) -> dict[str, RoundedMatrix]:
    """Each weight by itself, of all matrices in the layers."""
    return {name: _to_nearest(model.parameters[name], group_size) for name in _matrices(model)}


def rounded_by_gptq(
    model: SmallLlama, windows: Tensor, group_size: int
) -> dict[str, RoundedMatrix]:
    """With the inputs that `windows`, token ids [count, tokens], give to each matrix.

    All inputs are those of the model before rounding.
    """
    moments = _second_moments(model, windows)
    return {
        name: _by_gptq(model.parameters[name], moments[name], group_size)
        for name in _matrices(model)
    }


def _matrices(model: SmallLlama) -> list[str]:
    return [
        name for name, tensor in model.parameters.items() if ".layers." in name and tensor.ndim == 2
    ]


def _second_moments(model: SmallLlama, windows: Tensor) -> Mapping[str, Tensor]:
    """Sums of x x^T, float64 [k, k], of the inputs of each matrix."""
    moments: dict[str, Tensor] = {}

    def product(name: str, x: Tensor, weight: Tensor) -> Tensor:
        rows = x.flatten(0, -2).double()
        moments[name] = moments.get(name, 0) + rows.T @ rows
        return F.linear(x, weight)

    for ids in windows.split(8):
        model.logits(ids, product, None)
    return moments


def _scales(groups: Tensor) -> Tensor:
    """float16 [n]: of rows [n, group], so that the greatest magnitude is code 1 or 15."""
    return (groups.abs().amax(1) / 7).clamp(min=1e-6).half()


def _to_nearest(weight: Tensor, group_size: int) -> RoundedMatrix:
    groups = weight.split(group_size, dim=1)
    scales = [_scales(group) for group in groups]
    codes = [_codes(group, scale) for group, scale in zip(groups, scales, strict=True)]
    return RoundedMatrix(torch.cat(codes, 1), torch.stack(scales, 1))


def _codes(values: Tensor, scales: Tensor) -> Tensor:
    """int32, as `values` [n, columns]."""
    codes = (values / scales[:, None].to(values.dtype)).round() + _CODES // 2
    return codes.clamp(0, _CODES - 1).int()


def _by_gptq(weight: Tensor, moments: Tensor, group_size: int) -> RoundedMatrix:
    rest = weight.double().clone()
    n, k = rest.shape
    damped = moments + _DAMPING * moments.diagonal().mean() * torch.eye(k, dtype=torch.float64)
    factor = torch.linalg.cholesky(torch.linalg.inv(damped), upper=True)
    codes = torch.empty((n, k), dtype=torch.int32)
    scales: list[Tensor] = []
    for column in range(k):
        if column % group_size == 0:
            scales.append(_scales(rest[:, column : column + group_size]))
        codes[:, column] = _codes(rest[:, column : column + 1], scales[-1])[:, 0]
        rounded = (codes[:, column] - _CODES // 2) * scales[-1].double()
        error = (rest[:, column] - rounded) / factor[column, column]
        rest[:, column:] -= torch.outer(error, factor[column, column:])
    return RoundedMatrix(codes, torch.stack(scales, 1))
