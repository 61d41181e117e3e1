"""View expressions: the stored shape that a view asks for is one that it can be applied to."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from taco_worker.models.plan.parameters import Parameter, Source, fills
from taco_worker.models.plan.views import (
    Columns,
    EveryRow,
    Flatten,
    GroupedRows,
    HeadMatrices,
    NormalizeColumns,
    NormalizeRows,
    PlusOne,
    Softplus,
    SwappedHalves,
    Transpose,
    View,
)

sizes = st.integers(1, 6)


@st.composite
def views_with_shapes(draw: st.DrawFn) -> tuple[View, tuple[int, ...]]:
    """A view, and the shape of what it gives."""
    rows, columns = draw(sizes), draw(sizes)
    start, after = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    groups, step = draw(sizes), draw(sizes)
    head_size = start + rows + after
    cases: list[tuple[View, tuple[int, ...]]] = [
        (Transpose(), (rows, columns)),
        (Columns(start, start + columns + after, columns), (rows, columns)),
        (GroupedRows(groups, start + rows + after, start, rows), (groups * rows, columns)),
        (EveryRow(min(start, step - 1), step), (rows, columns)),
        (SwappedHalves(2 * rows), (groups * 2 * rows, columns)),
        (PlusOne(), (rows, columns)),
        (Softplus(), (rows, columns)),
        (NormalizeRows(), (rows, columns)),
        (NormalizeColumns(), (rows, columns)),
        (HeadMatrices(head_size, start, rows), (groups, rows, columns)),
        (HeadMatrices(head_size, start, rows, transposed=True), (groups, columns, rows)),
    ]
    return draw(st.sampled_from(cases))


@given(views_with_shapes())
def test_a_view_of_the_stored_shape_has_the_shape_it_promises(
    case: tuple[View, tuple[int, ...]],
) -> None:
    view, shape = case
    stored = torch.randn(view.stored_shape(shape))
    assert tuple(view.apply(stored).shape) == shape


def test_grouped_rows_take_the_same_part_of_each_group() -> None:
    stored = torch.arange(12)[:, None]  # two groups of [q, q, k, k, v, v]
    keys = GroupedRows(2, 6, 2, 2).apply(stored)
    assert keys.flatten().tolist() == [2, 3, 8, 9]


def test_swapped_halves_swap_those_of_each_head() -> None:
    stored = torch.arange(8)  # two heads
    expected = [2, 3, 0, 1, 6, 7, 4, 5]
    assert SwappedHalves(4).apply(stored).tolist() == expected
    assert SwappedHalves(4).apply(stored[:, None].numpy()).ravel().tolist() == expected


def test_head_matrices_take_the_same_rows_of_each_head() -> None:
    stored = torch.arange(12).view(6, 2)  # two heads of [key, value, value]
    assert HeadMatrices(3, 0, 1, transposed=True).apply(stored).tolist() == [[[0], [1]], [[6], [7]]]
    values = [[[2, 3], [4, 5]], [[8, 9], [10, 11]]]
    assert HeadMatrices(3, 1, 2).apply(stored).tolist() == values


def test_every_row_splits_alternating_rows() -> None:
    stored = torch.arange(6)[:, None]
    assert EveryRow(0, 2).apply(stored).flatten().tolist() == [0, 2, 4]
    assert EveryRow(1, 2).apply(stored).flatten().tolist() == [1, 3, 5]


def test_normalized_rows_have_length_one() -> None:
    rows = NormalizeRows().apply(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    torch.testing.assert_close(rows, torch.tensor([[0.6, 0.8], [0.0, 0.0]]))


def test_normalized_columns_have_length_one() -> None:
    columns = NormalizeColumns().apply(torch.tensor([[3.0, 0.0], [4.0, 0.0]]))
    torch.testing.assert_close(columns, torch.tensor([[0.6, 0.0], [0.8, 0.0]]))


def test_flatten_takes_a_norm_per_head() -> None:
    assert Flatten((2, 3)).stored_shape((6,)) == (2, 3)
    assert Flatten((2, 3)).apply(torch.zeros(2, 3)).shape == (6,)


@pytest.mark.parametrize("is_stacked", [False, True])
def test_experts_are_stored_one_by_one_or_stacked(is_stacked: bool) -> None:
    name = "experts.w" if is_stacked else "experts.{expert}.w"
    parameter = Parameter("p", (3, 4, 5), ((Source(name, 1, 2, (Transpose(),)),),), num_experts=3)
    (layout,) = fills(parameter)
    stored = torch.randn(3, 5, 2)
    filled = torch.zeros(3, 4, 5)
    for tensor_name, fill in layout:
        tensor = stored if is_stacked else stored[int(tensor_name.split(".")[1])]
        assert fill.stored_shape == tuple(tensor.shape)
        assert fill.expert is not None
        filled[fill.expert, 1:3] = fill.rows(tensor)
    assert torch.equal(filled[:, 1:3], stored.transpose(1, 2))
    assert not filled[:, [0, 3]].any()


def test_experts_are_stored_in_one_flat_matrix() -> None:
    source = Source("experts.w", 1, 2, (Transpose(),), is_flat=True)
    (layout,) = fills(Parameter("p", (3, 4, 5), ((source,),), num_experts=3))
    stored = torch.randn(3, 5, 2)
    assert [fill.stored_shape for _, fill in layout] == [(15, 2)] * 3
    rows = [fill.rows(stored.flatten(0, 1)) for _, fill in layout]
    assert [fill.expert for _, fill in layout] == [0, 1, 2]
    assert torch.equal(torch.stack(rows), stored.transpose(1, 2))
