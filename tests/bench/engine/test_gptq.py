"""GPTQ as the benchmark of formats rounds by it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bench.engine.formats.gptq import (
    RoundedMatrix,
    matrix_by_gptq,
    rounded_by_gptq,
    rounded_to_nearest,
)
from bench.engine.int8.llama import Shape, SmallLlama, random_llama

SHAPE = Shape(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    vocab_size=64,
)


def _inputs(k: int) -> Tensor:
    """float64 [512, k], correlated as in models."""
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randn(k, k, generator=generator).double()
    return torch.randn(512, k, generator=generator).double() @ mixed


@pytest.mark.parametrize("group_size", [16, 20, 48])
def test_codes_are_those_of_optimal_brain_quantization(group_size: int) -> None:
    """Equation 2 of the paper: the inverse of the moments of all columns left, at each column."""
    weight = torch.randn(8, 48, generator=torch.Generator().manual_seed(1))
    x = _inputs(48)
    moments = x.T @ x
    rounded = matrix_by_gptq(weight, moments, group_size)
    damped = moments + 0.01 * moments.diagonal().mean() * torch.eye(48)
    rest = weight.double()
    for column in range(48):
        scale = rounded.scales[:, column // group_size].double()
        code = (rest[:, column] / scale).round().clamp(-8, 7)
        assert torch.equal(code + 8, rounded.codes[:, column].double())
        inverse = torch.linalg.inv(damped[column:, column:])
        error = (rest[:, column] - code * scale) / inverse[0, 0]
        rest[:, column:] -= torch.outer(error, inverse[0])


def test_outputs_have_less_error_than_with_nearest_codes() -> None:
    model, x = random_llama(SHAPE, seed=0), _inputs(32)
    name = "model.layers.0.mlp.up_proj.weight"
    weight = model.parameters[name]

    def error(matrix: RoundedMatrix) -> float:
        return float((x @ (matrix.values - weight).double().T).square().mean())

    nearest = rounded_to_nearest(model, 16)[name]
    assert error(matrix_by_gptq(weight, x.T @ x, 16)) < 0.5 * error(nearest)


def test_a_value_far_above_its_group_is_clipped() -> None:
    """It costs less than a scale with which the others are all 0."""
    weight = torch.full((8, 16), 0.3)
    weight[:, 0] = 4.0
    rounded = matrix_by_gptq(weight, torch.eye(16).double(), 16)
    assert bool((rounded.scales.float() * 7 < 3.9).all())
    assert bool((rounded.values[:, 1:] != 0).all())


def test_a_layer_sees_the_inputs_that_the_rounded_layers_before_it_give() -> None:
    model = random_llama(SHAPE, seed=0)
    windows = torch.randint(64, (3, 24), generator=torch.Generator().manual_seed(0))
    rounded = rounded_by_gptq(model, windows, 16)
    first = {name: one.values for name, one in rounded.items() if ".layers.0." in name}
    name = "model.layers.1.self_attn.q_proj.weight"
    seen: list[Tensor] = []

    def product(of: str, x: Tensor, weight: Tensor) -> Tensor:
        if of == name:
            seen.append(x.flatten(0, -2).double())
        return x @ weight.T

    SmallLlama(SHAPE, {**model.parameters, **first}).logits(windows, product, None)
    expected = matrix_by_gptq(model.parameters[name], seen[0].T @ seen[0], 16)
    assert torch.equal(expected.scales, rounded[name].scales)
    assert float((expected.codes != rounded[name].codes).float().mean()) < 0.01
