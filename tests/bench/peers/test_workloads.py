"""The workloads are those that the peers' published figures were measured with."""

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from bench.peers.workloads import HIGH_ID, LOW_ID, NAMED, parse

# Of the requests of round 0, as the drivers of the first comparison made them.
DIGESTS = {
    "single": "ec7e2bd710dfe65c",
    "long": "1996b4fde4137a66",
    "batch": "5bab8921387a65bf",
    "mixed": "0abedf850dbc3cde",
    "prefix": "38cdd50468f79e40",
    "json": "edb8abef9bb99e43",
    "json-single": "d47c022b4defaf73",
}


@pytest.mark.parametrize("name", DIGESTS)
def test_named_workloads_never_change(name: str) -> None:
    requests = [[request.prompt, request.num_output_tokens] for request in NAMED[name].requests()]
    assert hashlib.sha256(json.dumps(requests).encode()).hexdigest()[:16] == DIGESTS[name]


@pytest.mark.slow
@given(
    count=st.integers(1, 8),
    shared=st.integers(0, 20),
    prompt=st.tuples(st.integers(1, 20), st.integers(0, 20)),
    output=st.tuples(st.integers(1, 20), st.integers(0, 20)),
    round_number=st.integers(0, 5),
)
def test_a_shape_defines_the_requests(
    count: int, shared: int, prompt: tuple[int, int], output: tuple[int, int], round_number: int
) -> None:
    prompt_range, output_range = (f"{low}-{low + more}" for low, more in (prompt, output))
    prefix = f"{shared}+" if shared else ""
    workload = parse(f"{count}x{prefix}{prompt_range}/{output_range}")
    requests = workload.requests(round_number)
    assert len(requests) == count
    assert requests == workload.requests(round_number)
    assert len({tuple(request.prompt[:shared]) for request in requests}) == 1
    for request in requests:
        assert prompt[0] <= len(request.prompt) - shared <= sum(prompt)
        assert output[0] <= request.num_output_tokens <= sum(output)
        assert all(LOW_ID <= token_id < HIGH_ID for token_id in request.prompt)


def test_a_json_shape_is_the_shape_with_a_schema() -> None:
    constrained, free = (parse(text).requests() for text in ("json:3x8/16", "3x8/16"))
    assert [(each.prompt, each.num_output_tokens) for each in constrained] == [
        (each.prompt, each.num_output_tokens) for each in free
    ]
    for each in constrained:
        assert each.json_schema is not None
        Draft202012Validator.check_schema(each.json_schema)
        assert not Draft202012Validator(each.json_schema).is_valid([])
    assert all(each.json_schema is None for each in free)


def test_adapters_come_in_turn() -> None:
    adapted, plain = (parse(text).requests() for text in ("lora:6x8/16", "6x8/16"))
    assert [each.prompt for each in adapted] == [each.prompt for each in plain]
    assert [each.adapter for each in adapted] == [0, 1, 2, 3, 0, 1]
    assert {each.adapter for each in plain} == {None}


def test_each_round_has_a_new_shared_prefix() -> None:
    prefixes = {tuple(NAMED["prefix"].requests(round_number)[0].prompt) for round_number in (0, 1)}
    assert len(prefixes) == 2


@pytest.mark.parametrize(
    "text", ["", "fast", "32x128", "x128/128", "1x/5", "1x5-/5", "json:", "xml:1x2/3"]
)
def test_invalid_workloads_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is no workload"):
        parse(text)
