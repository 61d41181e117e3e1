"""Calls in Python: every literal, cut anywhere, is the value that Python itself reads."""

import ast
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.response_samples import pieces
from taco_gateway.text.response.built_in import TOOL_FORMATS
from taco_gateway.text.response.marker_tokens import MarkerTokens
from taco_gateway.text.response.response_delta import ResponseDelta, whole_calls
from taco_gateway.text.response.response_parser import ParserOptions, ResponseParser

SCHEMAS: dict[str, Any] = {"f": {}, "g": {}, "ns.h-1": {}}
Result = tuple[str, list[tuple[str | None, str]], int]


def result(text: str, lengths: tuple[int, ...] = (10**9,)) -> Result:
    options = ParserOptions(
        markers=MarkerTokens({}, (), ()), tools=TOOL_FORMATS["pythonic"], schemas=SCHEMAS
    )
    parser = ResponseParser(options)
    delta = ResponseDelta()
    for piece in pieces(text, lengths):
        parser.feed(piece)
        delta.extend(parser.take())
    parser.finish()
    delta.extend(parser.take())
    calls = [(call.name, call.arguments) for call in whole_calls(delta.calls)]
    return delta.content, calls, parser.num_whole_calls


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    | st.sampled_from(["'", '"', "\\", "'\"", "</tool_call>", "<|python_end|>", "🦊\u2028\x00"])
)
KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
LITERALS = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
LENGTHS = st.lists(st.integers(1, 16), min_size=1, max_size=12).map(tuple)


@settings(max_examples=300, deadline=None)
@given(a=LITERALS, b=LITERALS, lengths=LENGTHS)
def test_literals_are_what_python_reads(a: Any, b: Any, lengths: tuple[int, ...]) -> None:
    text = f"[f(a={a!r}, b={b!r}), g()]"
    content, calls, num_whole = whole = result(text, lengths)
    assert (content, num_whole) == ("", 2)
    assert [name for name, _ in calls] == ["f", "g"]
    assert json.loads(calls[0][1]) == {"a": a, "b": b}
    assert calls[1][1] == "{}"
    assert whole == result(text)


SOURCES = [
    "'a' ",
    '"it\'s"',
    "'''a\n'b''c'''",
    '"""say "hi" \\""" """',
    "r'\\d\\''",
    'R"""\\n"""',
    "u'\\u00fc\\x41\\U0001f98a\\N{BULLET}\\101\\0\\7z\\\n\\a\\b\\f\\n\\r\\t\\v'",
    "''",
    '""',
    "''''''",
    "0",
    "-1",
    "+1",
    "1_000",
    "0x1F",
    "0b101",
    "0o17",
    "1.",
    ".5",
    "-1e5",
    "1E-3",
    "123456789012345678901234567890",
    "True",
    "[ ]",
    "{ }",
    "[1,]",
    "[[], {}, [{}], ]",
    "{ 'a' : 1 , \"b\" : [ 2 , { 'c' : None , } ] , }",
]


@pytest.mark.parametrize("source", SOURCES)
def test_spellings(source: str) -> None:
    text = f"[ f( a = {source} , ) , ]"
    content, ((name, arguments),), num_whole = whole = result(text)
    assert (content, name, num_whole) == ("", "f", 1)
    assert json.loads(arguments) == {"a": ast.literal_eval(source.strip())}
    assert result(text, (1,)) == whole


def test_escapes_that_python_reads_otherwise_or_not_at_all() -> None:
    """JSON joins the halves of a character; an unknown escape is two characters."""
    _, ((_, arguments),), _ = result(r"[f(a='\ud83e\udd8a', b='\q')]")
    assert json.loads(arguments) == {"a": "🦊", "b": r"\q"}


def test_json_words_and_keys_that_are_no_strings() -> None:
    _, ((_, arguments),), _ = result("[f(a=true, b=null, c=false, d={1: 2, True: 3, 0.5: 4})]")
    expected = {"a": True, "b": None, "c": False, "d": {"1": 2, "true": 3, "0.5": 4}}
    assert json.loads(arguments) == expected


@pytest.mark.parametrize(
    "text",
    [
        "[1, 2, 3]",
        "[f(1)]",
        "[f('a', b=1)]",
        "[unknown(a=1)]",
        "[f]",
        "[f(",
        "[",
        "[]",
        "[f(**{'a': 1})]",
        "[import os]",
        f"[{'n' * 400}(a=1)]",
        "see [f(a=1)]",
        "f(a=1)",
    ],
)
def test_what_is_no_call_is_content(text: str) -> None:
    assert result(text) == result(text, (1,)) == (text, [], 0)


@pytest.mark.parametrize(
    "value",
    [
        "g()",
        "__import__('os')",
        "1 + 2",
        "x",
        "f'{x}'",
        "b'x'",
        "(1, 2)",
        "{1, 2}",
        "lambda: 0",
        "1if 1else 2",
        "'\\xZZ'",
        "'\\U00110000'",
        "'\\N{NO SUCH NAME}'",
        "0x" + "F" * 5000,
        "1j",
        "]",
    ],
)
def test_what_is_no_literal_ends_the_call(value: str) -> None:
    """Nothing is evaluated, and the call is not complete."""
    text = f"[f(a={value}, b=1)]"
    content, ((name, arguments),), num_whole = whole = result(text)
    assert (content, name, num_whole) == ("", "f", 0)
    assert arguments.startswith('{"a": ')
    assert '"b": ' not in arguments
    assert result(text, (1,)) == whole


@pytest.mark.parametrize("end", range(1, 40))
def test_a_call_that_is_cut(end: int) -> None:
    text = "[f(a='x\\ty', b=[1, {'k': 2.5}]), g(c=0)]"[:end]
    content, calls, num_whole = whole = result(text, (3,))
    assert result(text, (1,)) == whole == result(text)
    if not calls:
        assert content == text
    assert num_whole == max(0, text.count(")"))


def test_a_marker_around_the_list_and_text_before_it() -> None:
    text = "Let me see. <|python_start|>[ns.h-1(a=1)]<|python_end|> more"
    assert result(text, (2,)) == ("Let me see.", [("ns.h-1", '{"a": 1}')], 1)


def test_any_depth() -> None:
    depth = 50_000
    content, ((_, arguments),), num_whole = result(f"[f(a={'[' * depth}{']' * depth})]", (7,))
    assert (content, num_whole) == ("", 1)
    assert arguments == f'{{"a": {"[" * depth}{"]" * depth}}}'
