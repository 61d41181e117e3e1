"""Blocks copied between memories, as the offload tier gathers and scatters them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from taco_kernels.triton.block_copy import copy_blocks

pytestmark = pytest.mark.usefixtures("tensors_on_device")


def _blocks(num_blocks: int, block_bytes: int) -> Tensor:
    return torch.randint(0, 256, (num_blocks, block_bytes), dtype=torch.uint8)


@pytest.mark.parametrize("block_bytes", [16, 48, 16 * 1024, 16 * 1024 + 16, 40_000])
@pytest.mark.parametrize(
    ("source_ids", "target_ids"),
    [
        ([2], [0]),
        ([4, 0, 3], [1, 5, 2]),
        ([-1, 4, 0], [1, -1, 5]),  # either id keeps a pair from being copied
        ([-1, -1], [-1, 3]),
        ([], []),
    ],
    ids=str,
)
def test_named_blocks_arrive_and_no_other_changes(
    block_bytes: int, source_ids: list[int], target_ids: list[int]
) -> None:
    source, target = _blocks(5, block_bytes), _blocks(6, block_bytes)
    expected = target.clone()
    for source_id, target_id in zip(source_ids, target_ids, strict=True):
        if source_id >= 0 and target_id >= 0:
            expected[target_id] = source[source_id]
    copy_blocks(
        source, target, *(torch.tensor(i, dtype=torch.int64) for i in (source_ids, target_ids))
    )
    assert torch.equal(target, expected)


def test_more_pieces_than_programs() -> None:
    """Over a link few programs run, each of them many pieces."""
    source, target = _blocks(50, 16 * 1024 + 32), torch.zeros(50, 16 * 1024 + 32, dtype=torch.uint8)
    order = torch.randperm(50)
    copy_blocks(source, target, order, torch.arange(50))
    assert torch.equal(target, source[order])


@pytest.mark.parametrize("to_host", [False, True])
def test_blocks_cross_to_host_memory_and_back(to_host: bool) -> None:
    shape, pinned = (5, 16 * 1024 + 32), torch.cuda.is_available()
    on_host = torch.randint(0, 256, shape, dtype=torch.uint8, device="cpu", pin_memory=pinned)
    on_device = _blocks(*shape)
    source, target = (on_device, on_host) if to_host else (on_host, on_device)
    expected = target.cpu().clone()
    expected[[0, 3]] = source.cpu()[[4, 2]]
    copy_blocks(source, target, torch.tensor([4, 2]), torch.tensor([0, 3]))
    if pinned:
        torch.cuda.synchronize()
    assert torch.equal(target.cpu(), expected)


def test_blocks_inside_wider_rows() -> None:
    source, target = _blocks(4, 160)[:, 32:96], torch.zeros(4, 128, dtype=torch.uint8)
    copy_blocks(source, target[:, :64], torch.tensor([3, 1]), torch.tensor([0, 2]))
    expected = torch.zeros(4, 128, dtype=torch.uint8)
    expected[0, :64], expected[2, :64] = source[3], source[1]
    assert torch.equal(target, expected)


def test_blocks_within_one_memory() -> None:
    blocks = _blocks(6, 64)
    expected = blocks.clone()
    expected[[4, 5]] = expected[[0, 3]]
    copy_blocks(blocks, blocks, torch.tensor([0, 3]), torch.tensor([4, 5]))
    assert torch.equal(blocks, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": torch.zeros(2, 16)}, "source must be uint8 .*torch.float32"),
        ({"target": _blocks(2, 48)}, r"target must be uint8 .*\[2, 48\]"),
        ({"source": _blocks(2, 24), "target": _blocks(2, 24)}, r"source must be .*\[2, 24\]"),
        ({"source": _blocks(2, 64)[:, 8:40]}, "source must be .* multiples of 16"),
        ({"source_ids": torch.tensor([0], dtype=torch.int32)}, "source_ids must be int64"),
        ({"target_ids": torch.tensor([0, 1])}, r"target_ids must be int64 .*\[2\]"),
    ],
)
def test_error_names_the_mismatch(change: dict[str, Tensor], message: str) -> None:
    arguments: dict[str, Any] = {
        "source": _blocks(2, 32),
        "target": _blocks(2, 32),
        "source_ids": torch.tensor([0]),
        "target_ids": torch.tensor([1]),
        **change,
    }
    with pytest.raises(ValueError, match=message):
        copy_blocks(**arguments)
