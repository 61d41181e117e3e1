"""Regular expressions of checkpoints: what `re` matches, in bounded time."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taco_worker.quant.expressions import Expression
from taco_worker.quant.formats import gptq
from taco_worker.quant.modules import is_listed, matches_name

CHARACTERS = st.sampled_from(["a", "b", ".", r"\.", r"\d", r"\w", "[^a]", "[0-9b]", r"\b", "^"])
EXPRESSIONS = st.recursive(
    CHARACTERS | st.just("$"),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        inner.map(lambda part: f"({part})?"),
        inner.map(lambda part: f"(?:{part}){{1,2}}"),
        inner.map(lambda part: f"(?:{part})*?"),
        inner.map(lambda part: f"(?!{part})"),
        inner.map(lambda part: f"(?={part})"),
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=500)
@given(text=EXPRESSIONS, name=st.text(alphabet="ab.1_", max_size=8))
def test_the_same_names_as_re(text: str, name: str) -> None:
    assert Expression(text).match(name) == (re.match(text, name) is not None)
    assert Expression(text).search(name) == (re.search(text, name) is not None)


@pytest.mark.parametrize(
    "text", ["((.*)*)*(.*)*x$", "(a|a)*x$", "(a?){30}a{30}x", ".*" * 30 + "x$", "((a+)+)+x$"]
)
def test_hostile_expressions_take_few_steps(text: str) -> None:
    assert not Expression(text).match("a" * 100)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(", "unterminated"),
        (r"(a)\1", "groupref is not supported"),
        ("(?i)a", "flags are not supported"),
        ("(?<=a)b", "looks behind"),
        ("a" * 3000, "3000 characters"),
    ],
)
def test_what_is_not_read_is_one_error(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=rf"\A[^\n]*{message}[^\n]*\Z"):
        Expression(text)


def test_too_many_steps_are_one_error() -> None:
    with pytest.raises(ValueError, match=r"\A[^\n]* takes too long\Z"):
        Expression("(" * 6 + ".*" + "){1,99}" * 6).match("a" * 999)


def test_a_hostile_rule_of_a_checkpoint(tmp_path: Path) -> None:
    config = {"bits": 4, "group_size": 64, "dynamic": {"-:((.*)*)*(.*)*x$": {}}}
    format_ = gptq.read(config, tmp_path).format_of("model.layers.10.mlp.down_proj", 64, 64)
    assert format_ is not None
    assert not matches_name("model.layers.10.mlp.down_proj", "re:((.*)*)*(.*)*x$")
    assert not is_listed("model.layers.10.mlp.down_proj", ["((.*)*)*(.*)*x$"])
