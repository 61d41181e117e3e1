"""The grouped product of a mixture of experts against its reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.triton_interpreter import DEVICE
from taco_kernels.reference import experts as reference
from taco_kernels.reference.activation import GATED_ACTIVATIONS
from taco_kernels.triton.experts import multiply
from taco_kernels.triton.experts.multiply import multiply_experts
from taco_kernels.triton.experts.order import sort_pairs

pytestmark = pytest.mark.usefixtures("tensors_on_device")

# Relative to the greatest output. The interpreter has no product of bfloat16.
TOLERANCES = {torch.float32: 3e-6, torch.float16: 3e-3}
if DEVICE.type == "cuda":
    TOLERANCES[torch.bfloat16] = 2e-2


def choice(num_rows: int, num_experts: int, top_k: int) -> tuple[Tensor, Tensor]:
    ids = torch.randn(num_rows, num_experts).argsort(dim=1)[:, :top_k].int().contiguous()
    return ids, torch.randn(num_rows, top_k).softmax(1)


def mixture(
    num_experts: int, hidden_size: int, inner_size: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    gate_up = torch.randn(num_experts, 2 * inner_size, hidden_size) / hidden_size**0.5
    down = torch.randn(num_experts, hidden_size, inner_size) / inner_size**0.5
    return gate_up.to(dtype), down.to(dtype)


def assert_near(actual: Tensor, wanted: Tensor) -> None:
    assert actual.shape == wanted.shape
    error = (actual.float() - wanted).abs().max() / wanted.abs().max()
    assert error <= TOLERANCES[actual.dtype], error


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(
    ("num_rows", "num_experts", "top_k", "hidden_size", "inner_size"),
    [(1, 8, 2, 64, 64), (3, 1, 1, 20, 5), (20, 4, 3, 70, 24)],
)
def test_agrees_with_the_reference(
    dtype: torch.dtype,
    num_rows: int,
    num_experts: int,
    top_k: int,
    hidden_size: int,
    inner_size: int,
) -> None:
    weights_of_experts = mixture(num_experts, hidden_size, inner_size, dtype)
    x, (ids, weights) = torch.randn(num_rows, hidden_size), choice(num_rows, num_experts, top_k)
    x = x.to(dtype)

    out = multiply_experts(x, ids, weights, *weights_of_experts)

    assert_near(out, reference.multiply_experts(x, ids, weights, *weights_of_experts))


def test_agrees_with_the_grouped_product_of_torch() -> None:
    gate_up, down = mixture(5, 64, 32, torch.float16)
    x, (ids, weights) = torch.randn(9, 64).half(), choice(9, 5, 2)

    out = multiply_experts(x, ids, weights, gate_up, down)

    assert_near(out, reference.multiply_experts_grouped(x, ids, weights, gate_up, down).float())


@pytest.mark.parametrize("block_rows", [16, 32, 64, 128])
def test_every_size_of_blocks(block_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiply, "average_block_rows", lambda *_: block_rows)
    gate_up, down = mixture(2, 32, 32)
    x, (ids, weights) = torch.randn(80, 32), choice(80, 2, 1)

    out = multiply_experts(x, ids, weights, gate_up, down)

    assert_near(out, reference.multiply_experts(x, ids, weights, gate_up, down))


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("activation", GATED_ACTIVATIONS)
def test_gates_and_biases(activation: str, has_bias: bool) -> None:
    gate_up, down = mixture(3, 32, 24)
    x, (ids, weights) = torch.randn(5, 32), choice(5, 3, 2)
    options: dict[str, Any] = {"activation": activation}
    if activation == "swiglu_clipped":
        options |= {"alpha": 1.3, "limit": 0.7}
    if has_bias:
        options |= {"gate_up_bias": torch.randn(3, 48), "down_bias": torch.randn(3, 32)}

    out = multiply_experts(x, ids, weights, gate_up, down, **options)

    assert_near(out, reference.multiply_experts(x, ids, weights, gate_up, down, **options))


def test_rows_may_be_columns_of_a_wider_buffer() -> None:
    gate_up, down = mixture(3, 32, 16)
    wide, (ids, weights) = torch.randn(5, 80), choice(5, 3, 2)

    out = multiply_experts(wide[:, 20:52], ids, weights, gate_up, down)

    assert torch.equal(
        out, multiply_experts(wide[:, 20:52].contiguous(), ids, weights, gate_up, down)
    )


def test_no_rows_need_no_launch() -> None:
    gate_up, down = mixture(3, 32, 16)
    ids, weights = torch.empty(0, 2, dtype=torch.int32), torch.empty(0, 2)
    assert multiply_experts(torch.empty(0, 32), ids, weights, gate_up, down).shape == (0, 32)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    num_experts=st.integers(1, 12),
    block_rows=st.sampled_from([16, 32]),
    top_k=st.integers(1, 4),
    data=st.data(),
)
def test_pairs_are_sorted_in_blocks_of_one_expert(
    num_experts: int, block_rows: int, top_k: int, data: st.DataObject
) -> None:
    """Any choice, experts that no row or that every row has chosen included."""
    rows = data.draw(
        st.lists(
            st.lists(st.integers(0, num_experts - 1), min_size=top_k, max_size=top_k),
            min_size=1,
            max_size=60,
        )
    )
    ids = torch.tensor(rows, dtype=torch.int32)

    order = sort_pairs(ids, num_experts, block_rows)

    num_blocks = int(order.num_blocks)
    assert num_blocks <= order.max_blocks
    found: list[int] = []
    blocks = order.pairs.view(-1, block_rows)[:num_blocks].tolist()
    for block, expert in zip(blocks, order.block_experts[:num_blocks].tolist(), strict=True):
        pairs = [pair for pair in block if pair < ids.numel()]
        assert pairs
        assert block == pairs + [ids.numel()] * (block_rows - len(pairs))
        assert ids.view(-1)[pairs].tolist() == [expert] * len(pairs)
        found += pairs
    wanted = ids.view(-1).argsort(stable=True).tolist()
    assert found == wanted


def test_sorting_needs_more_than_one_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taco_kernels.triton.experts.order._CHUNK", 16)
    ids = torch.randint(0, 5, (37, 3), dtype=torch.int32)

    order = sort_pairs(ids, 5, 16)

    pairs = order.pairs[: int(order.num_blocks) * 16]
    assert pairs[pairs < 111].tolist() == ids.view(-1).argsort(stable=True).tolist()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="captures a CUDA graph")
def test_a_graph_replays_with_other_choices() -> None:
    gate_up, down = mixture(8, 64, 32, torch.bfloat16)
    x, (ids, weights) = torch.randn(6, 64).bfloat16(), choice(6, 8, 2)
    multiply_experts(x, ids, weights, gate_up, down)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = multiply_experts(x, ids, weights, gate_up, down)
    for _ in range(3):
        ids.copy_(choice(6, 8, 2)[0])
        graph.replay()
        assert_near(out, reference.multiply_experts(x, ids, weights, gate_up, down))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": torch.ones(3, 31)}, r"gate_up must be .*\[4, 32, 31\]"),
        ({"x": torch.ones(32, 3).T}, "x must be .* adjacent numbers"),
        ({"ids": torch.zeros(3, 2, dtype=torch.int64)}, r"ids must be .*int32 \[3, 2\]"),
        ({"weights": torch.zeros(3, 1)}, r"weights must be .*float32 \[3, 2\]"),
        ({"down_bias": torch.zeros(4, 31)}, r"down_bias must be .*\[4, 32\]"),
        ({"activation": "mish"}, "unknown activation 'mish'"),
    ],
)
def test_error_names_the_mismatch(changed: dict[str, Any], message: str) -> None:
    gate_up, down = mixture(4, 32, 16)
    arguments: dict[str, Any] = {
        "x": torch.ones(3, 32),
        "ids": torch.zeros(3, 2, dtype=torch.int32),
        "weights": torch.zeros(3, 2),
        "gate_up": gate_up,
        "down": down,
    }
    with pytest.raises(ValueError, match=message):
        multiply_experts(**(arguments | changed))
