"""Messages of the negotiation survive the wire, and other bytes are errors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taco_train.lightcc.negotiation.messages import (
    Batch,
    Ready,
    decode_batches,
    decode_ids,
    encode_batches,
    encode_ids,
)
from taco_train.lightcc.negotiation.requests import Kind, Request

sizes = st.integers(0, 2**40)
requests = st.builds(
    Request,
    st.sampled_from(Kind),
    st.text(max_size=40),
    dtype=st.sampled_from(["float32", "bfloat16", "bool"]),
    shape=st.lists(sizes, max_size=4).map(tuple),
    op=st.sampled_from(["", "sum", "adasum"]),
    root=st.integers(-1, 100),
    prescale=st.floats(allow_nan=False),
    ranks=st.lists(st.integers(0, 99), max_size=4).map(tuple),
)
ids = st.lists(st.integers(0, 5000), max_size=40, unique=True)
batches = st.one_of(
    st.builds(Batch, ids=ids.filter(bool)),
    st.builds(
        Batch,
        requests=st.lists(requests, max_size=3),
        new_ids=ids,
        error=st.text(max_size=20),
        is_join=st.booleans(),
        result=st.integers(-1, 9),
    ),
)


@given(ids)
def test_ids(numbers: list[int]) -> None:
    assert decode_ids(encode_ids(numbers)) == sorted(numbers)


def test_numbers_of_a_whole_model_are_few_bytes() -> None:
    assert len(Ready(ids=range(161)).encode()) <= 40


@given(
    ids,
    st.lists(requests, max_size=3),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.text(max_size=30),
)
def test_ready(
    numbers: list[int],
    some: list[Request],
    joined: bool,
    leaving: bool,
    blocked: bool,
    failure: str,
) -> None:
    message = Ready(sorted(numbers), some, joined, leaving, blocked, failure)
    assert Ready.decode(message.encode()) == message


def test_a_failure_with_the_name_of_a_file_that_is_not_text() -> None:
    assert Ready.decode(Ready(failure="no \udcff here").encode()).failure == "no ? here"


@given(st.lists(batches, max_size=4))
def test_batches(some: list[Batch]) -> None:
    found = decode_batches(encode_batches(some))
    assert [list(one.ids) for one in found] == [list(one.ids) for one in some]
    assert [one.requests for one in found] == [one.requests for one in some]
    assert [(one.error, one.is_join, one.result) for one in found] == [
        (one.error, one.is_join, one.result) for one in some
    ]


@given(st.binary(max_size=80))
def test_other_bytes_raise_value_errors_alone(data: bytes) -> None:
    for decode in (Ready.decode, decode_batches, decode_ids):
        try:
            decode(data)
        except ValueError:
            continue


@pytest.mark.parametrize(
    "content",
    [
        [],
        {"kind": "nothing", "name": "a"},
        {"kind": "barrier", "name": 3},
        {"kind": "barrier", "name": "a", "shape": [-1]},
        {"kind": "barrier", "name": "a", "shape": [True]},
        {"kind": "barrier", "name": "a", "root": "0"},
        {"kind": "barrier", "name": "a", "more": 1},
        {"kind": "barrier"},
    ],
)
def test_a_request_that_is_none(content: object) -> None:
    with pytest.raises(ValueError, match="request"):
        Request.from_json(content)
