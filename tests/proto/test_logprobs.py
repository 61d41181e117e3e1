"""Columns of log probabilities against plain lists of rows."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from taco_proto.logprobs import LogprobColumns, concatenate, without_entries

Row = tuple[list[int], list[float], list[int]]


@st.composite
def rows(draw: st.DrawFn) -> list[Row]:
    ids = st.integers(0, 2**31 - 1)
    scores = st.floats(-100, 0, width=32)
    some = draw(st.sampled_from([st.integers(0, 3), st.just(1)]))
    counts = draw(st.lists(some, max_size=8))
    return [
        tuple(draw(st.lists(kind, min_size=count, max_size=count)) for kind in (ids, scores, ids))  # type: ignore[misc]
        for count in counts
    ]


def columns_of(rows: list[Row]) -> LogprobColumns:
    columns = LogprobColumns()
    for row in rows:
        columns.append_row(*row)
    return columns


@given(rows=rows(), data=st.data())
def test_columns_act_like_a_list_of_rows(rows: list[Row], data: st.DataObject) -> None:
    columns = columns_of(rows)
    assert list(columns.rows()) == rows
    numbers = data.draw(st.lists(st.integers(0, len(rows) - 1)) if rows else st.just([]))
    taken = columns.take(np.array(numbers, np.int64))
    assert list(taken.rows()) == [rows[number] for number in numbers]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    bounds = [0, *cuts, len(rows)]
    parts = columns.split(bounds)
    assert [list(part.rows()) for part in parts] == [
        rows[start:end] for start, end in itertools.pairwise(bounds)
    ]
    assert concatenate(parts) == columns
    blank = concatenate([without_entries(2), columns])
    assert list(blank.rows()) == [([], [], [])] * 2 + rows
