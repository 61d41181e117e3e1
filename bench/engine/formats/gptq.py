"""Rounds the matrices of a Llama to 4 bits by GPTQ (Frantar et al. 2022, arXiv 2210.17323).

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

# Share of the mean diagonal that is added to the diagonal of the second moments (section 3.3).
_DAMPING = 0.01
_CODES = 16
_ZERO = _CODES // 2
# Parts of a group's greatest magnitude that its last code may stand for. Values above are clipped.
_CLIPPINGS = torch.linspace(0.7, 1.0, 16).tolist()
_BATCH = 8


@dataclass(frozen=True, slots=True)
class RoundedMatrix:
    """A matrix [n, k] in 4 bits, symmetric, in groups of adjacent columns.

    Attributes:
        codes: int32 [n, k] from 0 to 15 around 8.
        scales: float16 [n, groups].
    """

    codes: Tensor
    scales: Tensor
    group_size: int

    @property
    def values(self) -> Tensor:
        """float32 [n, k]."""
        scales = self.scales.float().repeat_interleave(self.group_size, 1)
        return (self.codes - _ZERO) * scales[:, : self.codes.shape[1]]


def rounded_to_nearest(model: SmallLlama, group_size: int) -> dict[str, RoundedMatrix]:
    """Each weight by itself, of all matrices in the layers."""
    return {
        name: _to_nearest(model.parameters[name], group_size)
        for layer in range(model.shape.num_hidden_layers)
        for name in _matrices(model, layer)
    }


def rounded_by_gptq(
    model: SmallLlama, windows: Tensor, group_size: int
) -> dict[str, RoundedMatrix]:
    """With the inputs that `windows`, token ids [count, tokens], give to each matrix.

    Layers are rounded in order. The inputs of a layer come from the rounded layers before it, so
    that it compensates their errors too (section 4 of the paper).
    """
    parameters = dict(model.parameters)
    rounded: dict[str, RoundedMatrix] = {}
    for layer in range(model.shape.num_hidden_layers):
        names = _matrices(model, layer)
        moments = _second_moments(SmallLlama(model.shape, parameters), names, windows)
        for name in names:
            rounded[name] = matrix_by_gptq(parameters[name], moments[name], group_size)
            parameters[name] = rounded[name].values
    return rounded


def matrix_by_gptq(weight: Tensor, moments: Tensor, group_size: int) -> RoundedMatrix:
    """Algorithm 1 of the paper, with a block of columns for each group.

    Args:
        weight: float [n, k].
        moments: float64 [k, k], the sum of x x^T of the matrix's inputs x.
    """
    rest = weight.double().clone()
    factor = _inverse_factor(moments)
    codes: list[Tensor] = []
    scales: list[Tensor] = []
    for begin in range(0, rest.shape[1], group_size):
        group = slice(begin, begin + group_size)
        own, part = factor[group, group], rest[:, group]
        scales.append(_searched_scales(part, own.diagonal()))
        errors = torch.empty_like(part)
        for column in range(part.shape[1]):
            codes.append(_codes(part[:, column], scales[-1]))
            rounded = (codes[-1] - _ZERO) * scales[-1].double()
            errors[:, column] = (part[:, column] - rounded) / own[column, column]
            part[:, column:] -= torch.outer(errors[:, column], own[column, column:])
        rest[:, begin + group_size :] -= errors @ factor[group, begin + group_size :]
    return RoundedMatrix(torch.stack(codes, 1), torch.stack(scales, 1), group_size)


def _matrices(model: SmallLlama, layer: int) -> list[str]:
    return [
        name
        for name, tensor in model.parameters.items()
        if f".layers.{layer}." in name and tensor.ndim == 2
    ]


def _second_moments(model: SmallLlama, names: list[str], windows: Tensor) -> Mapping[str, Tensor]:
    """Sums of x x^T, float64 [k, k], of the inputs of each matrix of `names`."""
    moments: dict[str, Tensor] = {}

    def product(name: str, x: Tensor, weight: Tensor) -> Tensor:
        if name in names:
            rows = x.flatten(0, -2)
            moments[name] = moments.get(name, 0) + (rows.T @ rows).double()
        return F.linear(x, weight)

    for ids in windows.split(_BATCH):
        model.logits(ids, product, None)
    return moments


def _inverse_factor(moments: Tensor) -> Tensor:
    """The upper Cholesky factor of the inverse of the damped moments."""
    damping = _DAMPING * moments.diagonal().mean()
    damped = moments + damping * torch.eye(len(moments), dtype=moments.dtype)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    return torch.linalg.cholesky(inverse, upper=True)


def _scales(part: Tensor, clipping: float = 1.0) -> Tensor:
    """float16 [n]: code 15 is `clipping` times the greatest magnitude of a row of `part`."""
    return (part.abs().amax(1) * clipping / (_ZERO - 1)).clamp(min=1e-6).half()


def _searched_scales(part: Tensor, factor: Tensor) -> Tensor:
    """float16 [n]: of rows [n, columns], the clipping with the least loss.

    Args:
        factor: [columns], of the Cholesky factor's diagonal: the loss of a column's error is its
            square divided by that of the factor (equation 2).
    """
    best = torch.full((len(part),), torch.inf, dtype=part.dtype)
    chosen = torch.empty(len(part), dtype=torch.float16)
    for clipping in _CLIPPINGS:
        scales = _scales(part, clipping)
        rounded = (_codes(part, scales[:, None]) - _ZERO) * scales[:, None].double()
        losses = ((part - rounded) / factor).square().sum(1)
        chosen = torch.where(losses < best, scales, chosen)
        best = torch.minimum(losses, best)
    return chosen


def _to_nearest(weight: Tensor, group_size: int) -> RoundedMatrix:
    groups = weight.split(group_size, dim=1)
    scales = [_scales(group) for group in groups]
    pairs = zip(groups, scales, strict=True)
    codes = torch.cat([_codes(group, scale[:, None]) for group, scale in pairs], 1)
    return RoundedMatrix(codes, torch.stack(scales, 1), group_size)


def _codes(values: Tensor, scales: Tensor) -> Tensor:
    """int32, of values and scales of shapes that broadcast."""
    codes = (values / scales.to(values.dtype)).round() + _ZERO
    return codes.clamp(0, _CODES - 1).int()
