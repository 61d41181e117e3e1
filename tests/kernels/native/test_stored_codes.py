"""Codes as checkpoints store them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from taco_kernels.native.stored_codes import has_e4m3_nans, transpose_nibbles

AWQ = (0, 2, 4, 6, 1, 3, 5, 7)


@pytest.mark.parametrize("rows", [tuple(range(8)), AWQ])
@pytest.mark.parametrize(("n", "k"), [(8, 8), (40, 24), (64, 200), (0, 8)])
def test_codes_keep_their_places(n: int, k: int, rows: tuple[int, ...]) -> None:
    codes = np.random.default_rng(0).integers(0, 16, (n, k), dtype=np.uint32)
    stored = np.zeros((k, n // 8), np.uint32)
    for place, row in enumerate(rows):
        stored |= codes[row::8].T << np.uint32(4 * place)

    words = transpose_nibbles(torch.from_numpy(stored.view(np.int32)), rows)

    assert tuple(words.shape) == (n, k // 8)
    found = words.numpy().view(np.uint32)
    for column in range(k):
        assert np.array_equal(found[:, column // 8] >> 4 * (column % 8) & 15, codes[:, column])


def test_words_that_are_no_view_of_a_whole_array() -> None:
    words = torch.arange(24 * 6, dtype=torch.int32).view(24, 6)
    assert torch.equal(transpose_nibbles(words[:, 1:4], AWQ), transpose_nibbles(words, AWQ)[8:32])


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        (torch.zeros(12, 1, dtype=torch.int32), AWQ),
        (torch.zeros(8, 1, dtype=torch.int64), AWQ),
        (torch.zeros(8, 1, dtype=torch.int32), (0,) * 8),
    ],
)
def test_what_has_no_transpose_is_rejected(words: torch.Tensor, rows: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="words of"):
        transpose_nibbles(words, rows)


@pytest.mark.parametrize("count", [0, 1, 5000])
def test_every_nan_is_found(count: int) -> None:
    numbers = torch.tensor([code for code in range(256) if code & 127 != 127], dtype=torch.uint8)
    floats = numbers[torch.arange(count) % numbers.numel()]
    assert not has_e4m3_nans(floats)
    for code in (0x7F, 0xFF):
        for place in {0, count // 2, count - 1} if count else ():
            with_nan = floats.clone()
            with_nan[place] = code
            assert has_e4m3_nans(with_nan)
            assert not has_e4m3_nans(with_nan[:place])
