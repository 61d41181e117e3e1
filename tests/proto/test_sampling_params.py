"""Every parameter has a minimum and a maximum, and the error names it."""

from typing import Any

import pytest

from taco_proto.errors import InvalidParameterError
from taco_proto.sampling_params import SamplingParams
from taco_proto.structured_outputs import StructuredOutputsParams

SWITCHES = (
    "use_beam_search",
    "ignore_eos",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
)


@pytest.mark.parametrize(
    ("param", "values"),
    [
        ("n", [0, -1, 10**9, 1.5, True]),
        ("best_of", [0, 10**9]),
        ("temperature", [-1, 1e7, "x", float("nan"), float("inf")]),
        ("top_p", [0, 1e-300, 1.5, -0.1]),
        ("top_k", [-2]),
        ("min_p", [-0.1, 1.1]),
        ("presence_penalty", [-2.1, 2.1]),
        ("frequency_penalty", [-2.1, 2.1]),
        ("repetition_penalty", [0, -1, 101]),
        ("max_tokens", [-1, 0, 2**31]),
        ("min_tokens", [-1, 17]),
        ("logprobs", [-2, 10**9, True]),
        ("prompt_logprobs", [-2]),
        ("truncate_prompt_tokens", [0]),
        ("no_repeat_ngram_size", [-1]),
        ("seed", [2**70, "x"]),
        ("stop", ["", [""], ["x" * 10_000], ["a"] * 100, [1], 5, b"x", {"x": 1}]),
        ("stop_token_ids", [[-1], ["a"], [2**31], 5, 0, b"x", "x"]),
        ("logit_bias", [{-1: 0.0}, {5: 101.0}, {5: float("nan")}, dict.fromkeys(range(2000), 0.0)]),
        ("logit_bias", [[1], [(1, 1.0)], 5, "x"]),
        ("allowed_token_ids", [[], [-1], ["a"], [True], [1.0], [2**31], range(2**16 + 1), 5]),
        ("bad_words", [[""], [" "], ["x" * 300], ["x"] * 257, [1], 5]),
        ("bad_words_token_ids", [[[]], [[-1]], [["a"]], [[1]] * 513, 5, [5]]),
        ("logprob_token_ids", [5, "x", [-1]]),
        ("structured_outputs", [5, "x", {"regexp": "a"}]),
        ("guided_decoding", [5, {"regex": "a"}]),
        *((switch, ["no", 1, 0, [], 0.0]) for switch in SWITCHES),
        ("length_penalty", [2.0, 10.5, float("nan"), "x"]),
        ("early_stopping", [True, "never", "soon", 2]),
    ],
)
def test_out_of_range_names_the_parameter(param: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InvalidParameterError) as caught:
            SamplingParams(**{param: value})
        assert caught.value.param == param
        assert param in str(caught.value)


def test_best_of_is_at_least_n() -> None:
    with pytest.raises(InvalidParameterError, match="best_of"):
        SamplingParams(n=3, best_of=2)
    assert SamplingParams(n=2, best_of=5).num_sequences == 5
    assert SamplingParams(n=2).num_sequences == 2


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("best_of", {"best_of": 65}),
        ("n", {"n": 65}),
        ("top_p", {"top_p": 0.9}),
        ("top_k", {"top_k": 7}),
        ("min_p", {"min_p": 0.1}),
        ("length_penalty", {"length_penalty": -10.5}),
        ("early_stopping", {"early_stopping": "always"}),
        ("stop_token_ids", {"stop_token_ids": range(33)}),
        ("max_tokens", {"n": 8, "max_tokens": 200_000}),
        ("max_tokens", {"n": 8, "max_tokens": 20_000, "logprobs": 20}),
        ("use_beam_search", {"structured_outputs": StructuredOutputsParams(regex="a")}),
    ],
)
def test_beam_search_excludes_what_it_cannot_do(param: str, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        SamplingParams(use_beam_search=True, **fields)
    assert caught.value.param == param


def test_beams_are_not_the_sequences_that_are_emitted() -> None:
    params = SamplingParams(use_beam_search=True, n=2, best_of=5)
    assert (params.num_sequences, params.num_outputs) == (5, 2)
    assert SamplingParams(n=2, best_of=5).num_outputs == 5


def test_normal_forms() -> None:
    params = SamplingParams(stop="x", stop_token_ids=[1], top_k=0, logit_bias={3: 1})
    assert params.stop == ("x",)
    assert params.stop_token_ids == (1,)
    assert params.top_k == -1
    assert params.logit_bias == {3: 1}
    assert SamplingParams(stop_token_ids=range(2)).stop_token_ids == (0, 1)


def test_a_constraint_may_be_a_mapping() -> None:
    constraint: Any = {"regex": "a", "json": None}
    params = SamplingParams(structured_outputs=constraint)
    assert params.structured_outputs == StructuredOutputsParams(regex="a")


def test_updates_are_checked() -> None:
    params = SamplingParams(max_tokens=None)
    assert params.with_updates(max_tokens=5).max_tokens == 5
    with pytest.raises(InvalidParameterError):
        params.with_updates(temperature=-1)


def test_stop_strings_need_text() -> None:
    with pytest.raises(InvalidParameterError, match="detokenize"):
        SamplingParams(stop="x", detokenize=False)
