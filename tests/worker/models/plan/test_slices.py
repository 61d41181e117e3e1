"""Columns of buffers: which parts cover a part together."""

from __future__ import annotations

import pytest

from taco_worker.models.plan.slices import Slice, is_covered

PART = Slice("x", 4, 6)


@pytest.mark.parametrize(
    ("others", "covers"),
    [
        ([], False),
        ([("x", 4, 6)], True),
        ([("x", 0, 20)], True),
        ([("y", 0, 20)], False),
        ([("x", 7, 3), ("x", 4, 3)], True),
        ([("x", 4, 3), ("x", 8, 2)], False),
        ([("x", 4, 5)], False),
        ([("x", 5, 5)], False),
        ([("x", 0, 4), ("x", 10, 4)], False),
        ([("x", 2, 7), ("x", 5, 1), ("x", 6, 9)], True),
    ],
    ids=str,
)
def test_parts_cover_a_part_together(others: list[tuple[str, int, int]], covers: bool) -> None:
    assert is_covered(PART, [Slice(*one) for one in others]) is covers
