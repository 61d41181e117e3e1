"""`bench.kernels.attention`: which shapes are measured, and which blocks sequences share."""

import pytest
import torch

from bench.kernels.attention import BLOCK_SIZE, Shape, block_tables, chosen_shapes


@pytest.mark.parametrize("num_shared", [0, 15, 16, 40, 96])
def test_sequences_share_their_first_whole_blocks(num_shared: int) -> None:
    shape = Shape(batch=5, context=100, num_new=1, num_shared=num_shared)
    tables = block_tables(shape)
    assert tables.shape == (5, 7)
    assert tables.unique().numel() == shape.num_blocks
    whole = num_shared // BLOCK_SIZE
    assert torch.equal(tables[:, :whole], tables[:1, :whole].expand(5, whole))
    assert all(tables[:, block].unique().numel() == 5 for block in range(whole, 7))


def test_shared_tokens_need_longer_decodes() -> None:
    shapes = chosen_shapes(["decode", "prefill"], [16], None, 512)
    assert [(shape.context, shape.num_shared) for shape in shapes] == [(2048, 512), (8192, 512)]


def test_without_shared_tokens_both_phases_are_measured() -> None:
    shapes = chosen_shapes(["decode", "prefill"], None, [512], 0)
    assert [(shape.batch, shape.num_new) for shape in shapes] == [
        (1, 1),
        (16, 1),
        (32, 1),
        (64, 1),
        (1, 512),
    ]
