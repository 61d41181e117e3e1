"""Splitting draft trees into paths: the blocks of each path, and the KV copied to them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from support.plans import ints
from taco_worker.backends.cpu.tree_paths import cut_into_paths
from taco_worker.models.step_model import ModelInput

# From position 29, in blocks of 16: a chain over a block's end, two branches before it, one after.
STEP = ModelInput(
    token_ids=torch.zeros(9, dtype=torch.int32),
    positions=ints([5, 29, 30, 31, 32, 33, 33, 31, 31]),
    query_start=ints([0, 1, 9]),
    seq_lens=ints([6, 37]),
    block_tables=np.array([[9, -1, -1], [4, 7, 2]], dtype=np.int32),
    output_rows=ints(range(9)),
    parents=ints([-1, -1, 1, 2, 3, 4, 4, 2, 2]),
)


def test_paths_share_blocks_up_to_the_one_in_which_they_begin() -> None:
    paths = cut_into_paths(STEP, 16, 100, 5)
    assert paths.query_start.tolist() == [0, 1, 6, 7, 8, 9]
    assert paths.seq_lens.tolist() == [6, 34, 34, 32, 32]
    tables = [[9, -1, -1], [4, 7, 2], [4, 7, 100], [4, 101, 2], [4, 102, 2]]
    assert paths.block_tables.tolist() == tables
    assert paths.num_spares == 3
    assert paths.kv_slots.tolist() == [
        *(9 * 16 + 5, 7 * 16 + 13, 7 * 16 + 14, 7 * 16 + 15, 2 * 16, 2 * 16 + 1),
        *(100 * 16 + 1, 101 * 16 + 15, 102 * 16 + 15),
    ]
    copies = dict(zip(paths.targets.tolist(), paths.sources.tolist(), strict=True))
    expected = {100 * 16: 2 * 16}
    for block in (101, 102):
        expected |= {block * 16 + offset: 7 * 16 + offset for offset in range(15)}
    assert copies == expected


def test_a_nested_path_copies_each_token_from_its_own_block() -> None:
    """Committed tokens and the root come from the sequence, the others from the parent path."""
    step = replace(
        STEP,
        positions=ints([5, 18, 19, 20, 19, 20, 21, 22, 21]),
        parents=ints([-1, -1, 1, 2, 1, 4, 5, 6, 5]),
    )
    paths = cut_into_paths(step, 16, 100, 5)
    assert paths.block_tables[-1].tolist() == [4, 101, 2]
    last = paths.targets >= 101 * 16
    assert paths.targets[last].tolist() == [101 * 16 + offset for offset in (4, 3, 2, 1, 0)]
    own = [7 * 16 + offset for offset in (2, 1, 0)]
    assert paths.sources[last].tolist() == [100 * 16 + 4, 100 * 16 + 3, *own]


def test_too_few_spare_blocks_are_an_error() -> None:
    with pytest.raises(ValueError, match="need more than 2 spare KV blocks"):
        cut_into_paths(STEP, 16, 100, 2)
