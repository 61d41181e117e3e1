"""Which logits processors a request uses."""

import re
from dataclasses import replace
from typing import Any

import pytest

from support.scripted_engine import MODEL_INFO
from taco_gateway.text.request_processors import compiled_pattern, processors_of
from taco_proto.errors import ConfigurationError, InvalidParameterError
from taco_proto.sampling_params import SamplingParams

INFO = replace(MODEL_INFO, logits_processors=("a:One", "b:Two", "b:Three"))


def own(output: list[int], logits: Any) -> Any:
    return logits


@pytest.mark.parametrize(
    ("pattern", "given", "expected"),
    [
        (None, [], ["a:One", "b:Two", "b:Three"]),
        (None, [own], ["a:One", "b:Two", "b:Three", own]),
        ("b:", [], ["a:One"]),
        ("b:", ["b:Three"], ["a:One", "b:Three"]),
        ("b:", ["b:Three", "b:Two", "b:Three"], ["a:One", "b:Three", "b:Two"]),
        (".*Two$", ["b:Two"], ["a:One", "b:Three", "b:Two"]),
        ("", ["a:One"], ["a:One"]),
    ],
)
def test_loaded_processors_run_unless_they_must_be_named(
    pattern: str | None, given: list[Any], expected: list[Any]
) -> None:
    params = SamplingParams(logits_processors=given)
    assert list(processors_of(params, INFO, compiled_pattern(pattern))) == expected


@pytest.mark.parametrize(
    ("pattern", "name"),
    [(None, "a:One"), ("b:", "a:One"), ("b:", "b:Four"), (".*", "os:system"), ("b:", "B:Two")],
)
def test_other_names_are_rejected(pattern: str | None, name: str) -> None:
    params = SamplingParams(logits_processors=[name])
    with pytest.raises(InvalidParameterError, match="not one of the processors") as rejected:
        processors_of(params, INFO, compiled_pattern(pattern))
    assert rejected.value.param == "logits_processors"


def test_arguments_need_a_loaded_processor() -> None:
    params = SamplingParams(extra_args={"a": 1})
    assert processors_of(params, INFO, None)
    with pytest.raises(InvalidParameterError) as rejected:
        processors_of(params, MODEL_INFO, None)
    assert rejected.value.param == "extra_args"


def test_an_invalid_pattern_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match=re.escape("'(': missing")):
        compiled_pattern("(")
