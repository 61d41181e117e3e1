"""The product of a mixture of experts of codes against the reference on their values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from support.random_codes import KINDS, random_codes, shuffled_groups
from support.triton_interpreter import DEVICE
from taco_kernels.code_packing import pack
from taco_kernels.group_codes import CodeKind
from taco_kernels.packed_codes import PackedExperts
from taco_kernels.reference import experts as reference
from taco_kernels.triton.codes.experts import multiply_coded_experts

# Relative to the greatest output; inner values are rounded to the type.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}


def experts(
    kind: CodeKind, num_experts: int, n: int, k: int, group: int, **options: Any
) -> PackedExperts:
    weight = pack(random_codes(kind, num_experts * n, k, group, **options))
    return PackedExperts(weight.map_tensors(lambda _, one: one.to(DEVICE)), num_experts)


def inputs(
    num_rows: int, num_experts: int, top_k: int, size: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(num_rows, num_experts, generator=generator)
    x = torch.randn(num_rows, size, generator=generator).to(dtype)
    ids = scores.argsort(dim=1)[:, :top_k].int().contiguous()
    weights = torch.randn(num_rows, top_k, generator=generator).softmax(1)
    return x.to(DEVICE), ids.to(DEVICE), weights.to(DEVICE)


def assert_agrees(
    x: Tensor, ids: Tensor, weights: Tensor, *matrices: PackedExperts, **options: Any
) -> None:
    out = multiply_coded_experts(x, ids, weights, *matrices, **options)
    wanted = reference.multiply_experts(x, ids, weights, *matrices, **options)
    assert out.dtype == x.dtype
    error = (out.float() - wanted).abs().max() / wanted.abs().max()
    assert error <= TOLERANCES[x.dtype], error


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind(kind: CodeKind, dtype: torch.dtype) -> None:
    gate_up = experts(kind, 3, 2 * 40, 96, 32)
    down = experts(kind, 3, 96, 40, 32, seed=1)
    x, ids, weights = inputs(4, 3, 2, 96, dtype)
    assert_agrees(x, ids, weights, gate_up, down)


@pytest.mark.parametrize("options", [{"zeros": (0, 15)}, {"has_minima": True}])
def test_zeros_and_minima(options: dict[str, Any]) -> None:
    gate_up = experts("int4", 3, 2 * 40, 96, 32, **options)
    down = experts("int4", 3, 96, 40, 16, seed=1, **options)
    x, ids, weights = inputs(4, 3, 2, 96, torch.float16)
    assert_agrees(x, ids, weights, gate_up, down)


def test_orders_biases_and_many_rows() -> None:
    gate_up = experts("int4", 2, 2 * 16, 64, 32, group_of_column=shuffled_groups(64, 32))
    down = experts("int8", 2, 64, 16, 16, group_of_column=shuffled_groups(16, 16))
    options: dict[str, Any] = {
        "gate_up_bias": torch.randn(2, 32).half().to(DEVICE),
        "down_bias": torch.randn(2, 64).half().to(DEVICE),
    }
    options |= {"activation": "swiglu_clipped", "alpha": 1.3, "limit": 0.7}
    x, ids, weights = inputs(80, 2, 1, 64, torch.float16)
    assert_agrees(x, ids, weights, gate_up, down, **options)


def test_no_rows_need_no_launch() -> None:
    gate_up, down = experts("int4", 3, 80, 96, 32), experts("int4", 3, 96, 40, 32)
    x, ids, weights = inputs(0, 3, 2, 96, torch.float16)
    assert multiply_coded_experts(x, ids, weights, gate_up, down).shape == (0, 96)


def test_error_names_the_mismatch() -> None:
    gate_up, down = experts("int4", 3, 80, 95, 32), experts("int4", 3, 96, 40, 32)
    x, ids, weights = inputs(2, 3, 2, 96, torch.float16)
    with pytest.raises(ValueError, match=r"gate_up must be \[3, 80, 96\], not \[3, 80, 95\]"):
        multiply_coded_experts(x, ids, weights, gate_up, down)
