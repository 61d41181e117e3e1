"""Where the numbers of packed matrices are."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from taco_kernels.cpu.packed_matrix import PackedMatrix
from taco_kernels.panels import halves, matrix_bytes


@given(st.data(), st.integers(1, 50), st.booleans())
def test_halves_are_all_rows_of_gate_and_up(data: st.DataObject, size: int, gated: bool) -> None:
    n = 2 * size if gated else size
    start = data.draw(st.integers(0, n - 1))
    count = data.draw(st.integers(1, n - start))

    found = halves(n, start, count, gated=gated)

    rows = [
        (rows.half * size + rows.first + i - rows.begin, i)
        for rows in found
        for i in range(rows.begin, rows.end)
    ]
    assert rows == [(start + i, i) for i in range(count)]
    assert all(rows.first + rows.end - rows.begin <= size for rows in found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize(("n", "k", "gated"), [(16, 64, False), (34, 65, True), (1, 1, False)])
def test_matrices_take_as_much(n: int, k: int, gated: bool, dtype: torch.dtype) -> None:
    matrix = PackedMatrix(n, k, dtype, gated=gated)
    assert matrix._data.numel() == matrix_bytes(n, k, dtype.itemsize, gated=gated)
    assert not matrix._data.any()
