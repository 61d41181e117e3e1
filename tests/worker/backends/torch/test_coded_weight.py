"""Parameters of a torch network whose rows are codes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support.random_codes import random_codes, shuffled_groups
from taco_kernels.group_codes import GroupCodes
from taco_kernels.packed_codes import PackedCodes, PackedExperts
from taco_worker.backends.torch.coded_weight import CodedWeight
from taco_worker.layers.torch_ops import TorchOps
from taco_worker.quant.int8_rows import int8_rows

CPU = torch.device("cpu")
K = 64


def weight_of(*pieces: GroupCodes | Tensor) -> CodedWeight:
    """Put from the last to the first."""
    starts = [0]
    for piece in pieces:
        starts.append(starts[-1] + piece.shape[0])
    weight = CodedWeight((starts[-1], K), dtype=torch.float32, device=CPU)
    for start, piece in reversed(list(zip(starts, pieces, strict=False))):
        assert weight.parts == ()
        weight.put(start, piece, None)
    return weight


def values(piece: GroupCodes | Tensor) -> Tensor:
    return piece.values() if isinstance(piece, GroupCodes) else piece


@pytest.mark.parametrize(
    ("pieces", "num_parts"),
    [
        ([random_codes("int4", 5, K, 32), random_codes("int4", 3, K, 32, seed=1)], 1),
        ([random_codes("int4", 5, K, 32), random_codes("int8", 3, K, 32)], 2),
        ([random_codes("int4", 5, K, 32), torch.randn(3, K), torch.randn(2, K)], 2),
        ([torch.randn(3, K), random_codes("e4m3", 5, K, 16), torch.randn(2, K)], 3),
    ],
)
def test_rows_of_several_layouts(pieces: list[GroupCodes | Tensor], num_parts: int) -> None:
    """Fused rows in any order; adjacent rows of one layout are one matrix."""
    weight = weight_of(*pieces)
    x, bias = torch.randn(4, K), torch.randn(weight.shape[0])

    out = weight(x, bias, TorchOps().multiply_codes)

    wanted = torch.nn.functional.linear(x, torch.cat([values(piece) for piece in pieces]), bias)
    torch.testing.assert_close(out, wanted)
    assert len(weight.parts) == num_parts
    assert sum(isinstance(part.rows, PackedCodes) for part in weight.parts) <= num_parts


def test_all_tensors_are_parameters() -> None:
    """So that weight offload moves them and their memory is counted."""
    codes = random_codes("int4", 5, K, 32, zeros=(0, 15), group_of_column=shuffled_groups(K, 32))
    weight = weight_of(codes, torch.randn(3, K))
    names = {name for name, _ in weight.named_parameters()}
    assert names == {"codes_0", "row_scales_0", "scales_0", "zeros_0", "order_0", "rows_1"}
    rows = weight.parts[0].rows
    assert isinstance(rows, PackedCodes)
    assert rows.codes is weight.get_parameter("codes_0")


def experts(*orders: Tensor | None) -> tuple[CodedWeight, Tensor]:
    """Experts whose gate and up rows are put one by one, with the order of columns of each."""
    weight = CodedWeight((len(orders), 10, K), dtype=torch.float32, device=CPU)
    wanted = torch.empty(len(orders), 10, K)
    for expert, order in enumerate(orders):
        for start in (5, 0):
            seed = 2 * expert + start
            codes = random_codes("int4", 5, K, 32, group_of_column=order, seed=seed)
            weight.put(start, codes, expert)
            wanted[expert, start : start + 5] = codes.values()
    return weight, wanted


def test_experts_are_one_matrix() -> None:
    weight, wanted = experts(None, None, None)
    found = weight.experts
    assert isinstance(found, PackedExperts)
    assert found.shape == wanted.shape
    for expert, matrix in enumerate(wanted):
        torch.testing.assert_close(found[expert], matrix)


def test_experts_with_orders_of_their_own_are_dequantized() -> None:
    weight, wanted = experts(None, shuffled_groups(K, 32))
    assert weight.experts is None

    weight.dequantize()

    assert isinstance(weight.experts, Tensor)
    torch.testing.assert_close(weight.experts, wanted)
    assert [name for name, _ in weight.named_parameters()] == ["rows_0"]


def test_int8_rows_are_rounded_to_the_nearest_code() -> None:
    rows = torch.randn(20, 100).bfloat16()
    rows[3] = 0
    codes = int8_rows(rows)
    error = (codes.values() - rows.float()).abs()
    assert bool((error <= codes.scales / 2 * (1 + 1e-4)).all())
    assert bool((codes.values().abs().amax(1) - rows.float().abs().amax(1) < 1e-6).all())


@pytest.mark.parametrize("number", [torch.nan, -torch.inf])
def test_int8_rows_must_be_finite(number: float) -> None:
    rows = torch.ones(2, 3)
    rows[1, 2] = number
    with pytest.raises(ValueError, match="numbers are not finite"):
        int8_rows(rows)
