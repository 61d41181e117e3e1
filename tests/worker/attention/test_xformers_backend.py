"""The xformers back end's calls to xformers, and xformers' kernel that reads KV blocks."""

from __future__ import annotations

import pytest
import torch
from xformers.ops.fmha import attn_bias as biases
from xformers.ops.fmha import flash, flash3
from xformers.ops.fmha.common import Inputs

from support import triton_interpreter
from support.attention_batch import LAYER, Batch
from support.xformers_operators import InterpretedOperators, MaterializedOperators
from taco_worker.attention.xformers_backend import Operator, XformersAttention

triton_interpreter.install()

DECODES = [(0, 1), (15, 1), (16, 1), (70, 1)]
PREFILLS = [(0, 7), (0, 16), (33, 5)]


@pytest.mark.skipif(triton_interpreter.DEVICE.type != "cpu", reason="interpreted on CPUs only")
@pytest.mark.parametrize(
    "batch",
    [
        Batch(DECODES, 2, 4, head_dim=32),
        Batch(DECODES, 1, 7, head_dim=16, window=10),
        Batch(DECODES, 2, 2, head_dim=32, block_size=32, window=20),
        Batch([(33, 1)], 2, 1, head_dim=16, block_size=32),
    ],
    ids=lambda batch: f"blocks of {batch.block_size}, window {batch.window}",
)
def test_split_k_reads_only_the_blocks_of_the_tables(batch: Batch) -> None:
    torch.manual_seed(0)
    cache, metadata = batch.cache(torch.float16), batch.metadata()
    num_heads = batch.num_kv_heads * batch.group_size
    fused = torch.full((len(DECODES), num_heads + 3, batch.head_dim), torch.nan).half()
    query = fused[: len(batch.lens), :num_heads]
    query.copy_(batch.query())
    backend = XformersAttention(InterpretedOperators())
    actual = backend.attend(query, cache, LAYER, metadata, batch.options())
    expected = batch.reference(query.contiguous(), cache, metadata)
    torch.testing.assert_close(actual, expected, atol=2e-3, rtol=2e-3)


def _run_xformers(batch: Batch, *, has_flash3: bool) -> MaterializedOperators:
    """The operators that a step uses, with and without FlashAttention 3."""
    operators = MaterializedOperators(lambda operator: has_flash3 or operator is not flash3.FwOp)
    dtype = torch.float16
    XformersAttention(operators).attend(
        batch.query(dtype), batch.cache(dtype), LAYER, batch.metadata(), batch.options()
    )
    return operators


def _obstacles(operator: Operator, inputs: Inputs) -> list[str]:
    """Why a GPU with the operator could not run these inputs."""
    reasons: list[str] = operator.not_supported_reasons(inputs)
    return [r for r in reasons if not r.startswith(("device=", "operator wasn't built"))]


@pytest.mark.parametrize("window", [None, 10])
@pytest.mark.parametrize("block_size", [16, 32])
def test_xformers_reads_decodes_in_place(block_size: int, window: int | None) -> None:
    batch = Batch(DECODES, 2, 4, head_dim=64, block_size=block_size, window=window)
    operators = _run_xformers(batch, has_flash3=False)
    (operator,), (inputs,) = operators.used, operators.inputs
    assert operator is not None
    assert block_size == operator.BLOCK_N
    assert _obstacles(operator, inputs) == []
    assert inputs.key.untyped_storage().data_ptr() == inputs.value.untyped_storage().data_ptr()
    if window is not None:  # the tables start where the window starts
        assert inputs.attn_bias.block_tables.shape[1] <= -(-window // block_size) + 1


def test_xformers_copies_blocks_too_small_for_a_product() -> None:
    operators = _run_xformers(Batch(DECODES, head_dim=64, block_size=8), has_flash3=True)
    assert operators.used == [None]
    assert _obstacles(flash.FwOp, operators.inputs[0]) == []


@pytest.mark.parametrize(
    ("batch", "has_flash3", "reads_blocks"),
    [
        (Batch(PREFILLS, head_dim=64), True, True),
        (Batch(PREFILLS, head_dim=64), False, False),
        (Batch(PREFILLS, head_dim=64, window=8), True, False),
        (Batch([(0, 5), (0, 6)], head_dim=64), True, False),
    ],
)
def test_xformers_reads_prefills_in_place_where_it_can(
    batch: Batch, has_flash3: bool, reads_blocks: bool
) -> None:
    operators = _run_xformers(batch, has_flash3=has_flash3)
    (inputs,) = operators.inputs
    assert operators.used == [flash3.FwOp if reads_blocks else None]
    assert _obstacles(flash3.FwOp if reads_blocks else flash.FwOp, inputs) == []
    paged = biases.PagedBlockDiagonalCausalWithOffsetPaddedKeysMask
    assert isinstance(inputs.attn_bias, paged) == reads_blocks
