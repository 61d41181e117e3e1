"""Text of other processes in the log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taco_proto.log_text import one_line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("worker-0", "worker-0"),
        ("Größe 日本", "Größe 日本"),
        ("a\nb\r\x1b[31m", r"a\nb\r\x1b[31m"),
        ("a\u2028b\u202eb", r"a\u2028b\u202eb"),
        ("x" * 21, "x" * 20 + "…"),
    ],
)
def test_examples(text: str, expected: str) -> None:
    assert one_line(text, 20 if len(text) == 21 else 100) == expected


@given(st.text())
def test_it_is_one_short_line(text: str) -> None:
    line = one_line(text, 10)
    assert line.isprintable()
    assert len(line) <= 11
