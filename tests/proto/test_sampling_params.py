"""Every parameter has a minimum and a maximum, and the error names it."""

from typing import Any

import pytest

from taco_proto.errors import InvalidParameterError
from taco_proto.sampling_params import SamplingParams


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
        ("stop", ["", [""], ["x" * 10_000], ["a"] * 100, [1]]),
        ("stop_token_ids", [[-1], ["a"], [2**31]]),
        ("logit_bias", [{-1: 0.0}, {5: 101.0}, {5: float("nan")}, dict.fromkeys(range(2000), 0.0)]),
        ("allowed_token_ids", [[], [-1], ["a"], [True], [1.0], [2**31], range(2**16 + 1)]),
        ("bad_words", [[""], [" "], ["x" * 300], ["x"] * 257, [1]]),
        ("bad_words_token_ids", [[[]], [[-1]], [["a"]], [[1]] * 513]),
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


def test_normal_forms() -> None:
    params = SamplingParams(stop="x", stop_token_ids=[1], top_k=0, logit_bias={3: 1})
    assert params.stop == ("x",)
    assert params.stop_token_ids == (1,)
    assert params.top_k == -1
    assert params.logit_bias == {3: 1}


def test_updates_are_checked() -> None:
    params = SamplingParams(max_tokens=None)
    assert params.with_updates(max_tokens=5).max_tokens == 5
    with pytest.raises(InvalidParameterError):
        params.with_updates(temperature=-1)


def test_stop_strings_need_text() -> None:
    with pytest.raises(InvalidParameterError, match="detokenize"):
        SamplingParams(stop="x", detokenize=False)
