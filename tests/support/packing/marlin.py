"""Packs integers in the orders of Marlin, 2:4 Marlin and QQQ kernels.

By what each of the 32 threads of a warp reads: the B fragments of `mma.m16n8k16` in the PTX manual
(of f16: a thread holds rows 2q, 2q + 1, 2q + 8 and 2q + 9 of column c; of s8: rows 4q to 4q + 3;
c = thread / 4, q = thread % 4), and the nibbles that the kernels' `dequant` takes from a word.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from support.packing.integers import Integers, words

Codes = NDArray[np.int64]


def pack_marlin(integers: Integers) -> dict[str, Tensor]:
    """IST-DASLab/marlin's `Layer.pack`."""
    n, k = integers.codes.shape
    packed = np.zeros((k // 16, n * 2), np.uint32)
    for thread in range(32):
        column, quad = divmod(thread, 4)
        for block in range(2):  # a word feeds two products of 8 columns
            for half in range(2):
                for low in range(2):
                    # `dequant` takes nibbles (0, 4) and (1, 5), then (2, 6) and (3, 7).
                    nibble = 2 * block + half + 4 * low
                    row = 8 * half + 2 * quad + low
                    _put(packed, integers.codes, thread, nibble, row, 8 * block + column)
    return {".B": words(packed), ".s": _marlin_scales(integers.scales, k)}


def _put(
    packed: NDArray[np.uint32], codes: Codes, thread: int, nibble: int, row: int, column: int
) -> None:
    """Store one code of each 16 by 16 block: a thread reads 4 words, for 64 columns."""
    for tile in range(len(codes) // 64):
        for word in range(4):
            part = codes[64 * tile + 16 * word + column, row::16].astype(np.uint32)
            packed[:, 128 * tile + 4 * thread + word] |= part << (4 * nibble)


def _marlin_scales(scales: Tensor, k: int) -> Tensor:
    """[groups, n] of [n, groups]."""
    if scales.shape[1] > 1:
        return _group_order(scales.T)
    return _row_order(scales.T)


def _group_order(scales: Tensor) -> Tensor:
    """With the codes: thread c needs the scales of column c of each 8 of 64."""
    stored = torch.empty_like(scales)
    for start in range(0, scales.shape[1], 64):
        for column in range(8):
            for eight in range(8):
                stored[:, start + 8 * column + eight] = scales[:, start + 8 * eight + column]
    return stored


def _row_order(scales: Tensor) -> Tensor:
    """With the sums: thread q needs the scales of columns 2q and 2q + 1 of each 8 of 32."""
    stored = torch.empty_like(scales)
    for start in range(0, scales.shape[1], 32):
        place = start
        for quad in range(4):
            for eight in range(4):
                for low in range(2):
                    stored[:, place] = scales[:, start + 8 * eight + 2 * quad + low]
                    place += 1
    return stored


def pack_qqq_rows(codes: Codes, scales: Tensor) -> dict[str, Tensor]:
    """QQQ without groups, of signed codes -7..7 and float32 scales [n, 1].

    `dequant_per_channel` takes the high nibbles of four bytes; the word shifted left by 4 gives
    the second product.
    """
    n, k = codes.shape
    packed = np.zeros((k // 16, n * 2), np.uint32)
    for thread in range(32):
        column, quad = divmod(thread, 4)
        for block in range(2):
            for row in range(4):
                nibble = 2 * row + 1 - block
                _put(packed, codes & 15, thread, nibble, 4 * quad + row, 8 * block + column)
    return {
        ".B": words(packed),
        ".s_channel": _row_order(scales.T.float() / 16),
        ".s_group": torch.empty(0, dtype=torch.float16),
    }


def pack_qqq_groups(codes: Codes, group_scales: Tensor, row_scales: Tensor) -> dict[str, Tensor]:
    """QQQ with groups, of codes 0..15, scales float16 [n, groups] and float32 [n, 1].

    `dequant_per_group` takes nibbles 0, 4, 1, 5 as rows 0 to 3, and 2, 6, 3, 7 of the second
    product.
    """
    n, k = codes.shape
    packed = np.zeros((k // 16, n * 2), np.uint32)
    for thread in range(32):
        column, quad = divmod(thread, 4)
        for block in range(2):
            for row, place in enumerate((0, 4, 1, 5)):
                nibble = place + 2 * block
                _put(packed, codes, thread, nibble, 4 * quad + row, 8 * block + column)
    return {
        ".B": words(packed),
        ".s_channel": _row_order(row_scales.T),
        ".s_group": _group_order(group_scales.T),
    }


def prune(integers: Integers, seed: int = 0) -> Codes:
    """Set two of each four codes of a row to the zero point; returns which two are kept."""
    random = np.random.default_rng(seed)
    n, k = integers.codes.shape
    kept = np.sort(random.permuted(np.tile(np.arange(4), (n, k // 4, 1)), axis=2)[..., :2], axis=2)
    is_kept = np.zeros((n, k // 4, 4), bool)
    np.put_along_axis(is_kept, kept, True, axis=2)
    integers.codes[~is_kept.reshape(n, k)] = 2 ** (integers.bits - 1)
    return kept


def pack_sparse_marlin(integers: Integers, kept: Codes) -> dict[str, Tensor]:
    """2:4 Marlin, of codes of which `kept` [n, k / 4, 2] names two of each four columns."""
    n, k = integers.codes.shape
    codes = np.take_along_axis(integers.codes.reshape(n, k // 4, 4), kept, axis=2).reshape(n, -1)
    bits = integers.bits
    per_word = 32 // bits
    # The order of one tile: thread, four words' worth of columns, block, half and low row.
    order = []
    for thread in range(32):
        column, quad = divmod(thread, 4)
        for inner in range(4):
            first = 16 * (column // 2) + 8 * (column % 2) + inner
            part = [
                (first + 4 * block, row)
                for block in range(2)
                for row in (2 * quad, 2 * quad + 1, 2 * quad + 8, 2 * quad + 9)
            ]
            places = (0, 2, 4, 6, 1, 3, 5, 7) if bits == 4 else (0, 2, 1, 3, 4, 6, 5, 7)
            order += [part[place] for place in places]
    packed = np.zeros((k // 32, n // 64 * 1024 // per_word), np.uint32)
    for tile in range(n // 64):
        for place, (column, row) in enumerate(order):
            word, position = divmod(1024 * tile + place, per_word)
            values = codes[64 * tile + column, row::16].astype(np.uint32)
            packed[:, word] |= values << (bits * position)
    scales = integers.scales.T
    if scales.shape[0] > 1:
        stored = torch.empty_like(scales)
        for start in range(0, n, 8):
            for place, column in enumerate((0, 4, 1, 5, 2, 6, 3, 7)):
                stored[:, start + place] = scales[:, start + column]
        scales = stored
    return {
        ".B_24": words(packed),
        ".B_meta": _metadata(kept),
        ".s": scales.contiguous(),
    }


def _metadata(kept: Codes) -> Tensor:
    """CUTLASS's `reorder_meta` as 2:4 Marlin changes it, element by element."""
    n, quads, _ = kept.shape
    columns = quads // 4
    fours = kept[..., 0] | (kept[..., 1] << 2)
    elements = (fours.reshape(n, columns, 4) << np.array([0, 4, 8, 12])).sum(-1).astype(np.uint16)
    stored = np.zeros(n * columns, np.uint16)
    for row in range(n):
        for column in range(columns):
            to_row = (
                row // 64 * 64
                + row % 2 * 2
                + row % 8 // 4
                + row % 32 % 4 // 2 * 32
                + row % 64 // 8 * 4
            )
            to_column = column
            if to_row % 2 == 0 and column % 2 == 1:
                to_row, to_column = to_row + 1, column - 1
            elif to_row % 2 == 1 and column % 2 == 0:
                to_row, to_column = to_row - 1, column + 1
            place = to_column // 2 * n * 2 + to_row * 2 + to_column % 2
            stored[place] = elements[row, column]
    return torch.from_numpy(stored.view(np.int16)).reshape(columns // 2, n * 2)
