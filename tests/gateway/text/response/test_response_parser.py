"""One parser for all formats: any cut into pieces gives the same answer."""

import json
import sys
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taco_gateway.text.response.built_in import REASONING_FORMATS, TOOL_FORMATS
from taco_gateway.text.response.marker_tokens import MarkerTokens
from taco_gateway.text.response.response_delta import CallDelta, ResponseDelta, whole_calls
from taco_gateway.text.response.response_parser import ParserOptions, ResponseParser
from taco_gateway.text.response.typed_values import value_types

SCHEMAS: dict[str, Any] = {
    "f": {"properties": {"a": {"type": "integer"}, "o": {"type": ["object", "null"]}}},
    "g": {},
}
ARGUMENTS = '{"a":  1.50, "s": "</tool_call> \\" }] \\\\", "o": {"l": [1, {}], "ü": null}}'
THINK = "<think>\nfirst <b\n</think>\n\n"
CALLS = [("f", ARGUMENTS), ("g", "{}")]

# An answer of each format, with reasoning, content and two calls.
ANSWERS: dict[str, str] = {
    "hermes": f'{THINK}ok \n<tool_call>\n{{"name": "f", "arguments": {ARGUMENTS}}}\n</tool_call>\n'
    '<tool_call>{"name": "g"}</tool_call>',
    "mistral": f'{THINK}ok [TOOL_CALLS] [{{"name": "f", "arguments": {ARGUMENTS}}}, '
    '{"arguments": {}, "name": "g"}]',
    "mistral named": f"{THINK}ok[TOOL_CALLS]f[CALL_ID]012345678[ARGS]{ARGUMENTS}[TOOL_CALLS]g{{}}",
    "llama3_json": f'{THINK}ok <|python_tag|>{{"name": "f", "parameters": {ARGUMENTS}}}; '
    '{"name": "g", "parameters": {}}',
    "deepseek_v3": f"{THINK}ok<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n"
    f"```json\n{ARGUMENTS}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n"
    "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "internlm": f'{THINK}ok<|action_start|><|plugin|>\n{{"name": "f", "parameters": {ARGUMENTS}}}'
    '<|action_end|><|action_start|><|plugin|>{"name": "g"}<|action_end|>',
    "granite": f'{THINK}ok<|tool_call|>[{{"name": "f", "arguments": {ARGUMENTS}}}, '
    '{"name": "g"}]',
    "jamba": f'{THINK}ok<tool_calls>[\n  {{"name": "f", "arguments": {ARGUMENTS}}},\n'
    '  {"name": "g", "arguments": {}}\n]</tool_calls>',
    "kimi_k2": f"{THINK}ok<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
    f"<|tool_call_argument_begin|>{ARGUMENTS}<|tool_call_end|><|tool_call_begin|> functions.g:1 "
    "<|tool_call_argument_begin|> {} <|tool_call_end|><|tool_calls_section_end|>",
    "deepseek_v31": f"{THINK}ok<｜tool▁calls▁begin｜>"
    f"<｜tool▁call▁begin｜>f<｜tool▁sep｜>{ARGUMENTS}"
    "<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "minimax": f'{THINK}ok\n<tool_calls>\n{{"name": "f", "arguments": {ARGUMENTS}}}\n'
    '{"name": "g", "arguments": {}}\n</tool_calls>',
    "longcat": f'{THINK}ok\n<longcat_tool_call>\n{{"name": "f", "arguments": {ARGUMENTS}}}\n'
    '</longcat_tool_call>\n<longcat_tool_call>{"name": "g"}</longcat_tool_call>',
    "granite-20b-fc": f'{THINK}ok<function_call> {{"name": "f", "arguments": {ARGUMENTS}}}'
    '<function_call> {"name": "g", "arguments": {}}',
    "phi4_mini_json": f'{THINK}ok functools[{{"name": "f", "arguments": {ARGUMENTS}}}, '
    '{"name": "g", "arguments": {}}]',
    "xlam": f'{THINK}ok<tool_call>[{{"name": "f", "arguments": {ARGUMENTS}}}, '
    '{"name": "g", "arguments": {}}]</tool_call>',
}
TAGGED = (
    f"{THINK}ok\n<tool_call>\n<function=f>\n<parameter=a>\n3\n</parameter>\n<parameter=s>\n"
    ' x <b>\n"\n</parameter>\n<parameter=o>\n{"l": [1]}\n</parameter>\n</function>\n</tool_call>'
    "<tool_call><function=g></function></tool_call>"
)
PYTHON = (
    f"{THINK}ok <|python_start|>[f(a=1.5, s='</tool_call> \\' }}] \\\\', "
    'o={"l": [1, {}], "ü": None}), g()]<|python_end|>'
)
# The value of `s` has white space at its ends.
RAW = ' x <b>\n"\n'
RAW_ANSWERS = {
    "glm45": f"{THINK}ok\n<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>3</arg_value>\n"
    f"<arg_key>s</arg_key>\n<arg_value>{RAW}</arg_value>\n<arg_key>o</arg_key>\n"
    '<arg_value>{"l": [1]}</arg_value>\n</tool_call>\n<tool_call>g\n</tool_call>',
    "glm47": f"{THINK}ok<tool_call>f<arg_key>a</arg_key><arg_value>3</arg_value>"
    f"<arg_key>s</arg_key><arg_value>{RAW}</arg_value><arg_key>o</arg_key>"
    '<arg_value>{"l": [1]}</arg_value></tool_call><tool_call>g</tool_call>',
    "minimax_m2": f'{THINK}ok\n<minimax:tool_call>\n<invoke name="f">\n'
    f'<parameter name="a">3</parameter>\n<parameter name="s">{RAW}</parameter>\n'
    '<parameter name="o">{"l": [1]}</parameter>\n</invoke>\n<invoke name="g">\n</invoke>\n'
    "</minimax:tool_call>",
    "seed_oss": f"{THINK}ok\n<seed:tool_call>\n<function=f>\n<parameter=a>3</parameter>\n"
    f'<parameter=s>{RAW}</parameter>\n<parameter=o>{{"l": [1]}}</parameter>\n</function>\n'
    "</seed:tool_call>\n<seed:tool_call>\n<function=g>\n</function>\n</seed:tool_call>",
}
PYTHON_LINES = (
    f"{THINK}ok\n<function_calls>\nf(a=1.5, s='x', o=null)\ng(b=[true, None])\n</function_calls>"
)
OTHER_ANSWERS = {
    "qwen3_coder": TAGGED,
    "pythonic": PYTHON,
    "olmo3": PYTHON_LINES,
    **RAW_ANSWERS,
}
HOSTILE = [
    "<tool_call>",
    "<tool_call></tool_call>",
    "<tool_call>hello</tool_call> and more",
    '<tool_call>{"name": "f", "arguments": {"a": ',
    '<tool_call>{"name": "f", "arguments": {"a": ]}}</tool_call>x<tool_call>{"name": "g"}',
    '<tool_call>{"name": "f"',
    '<tool_call>{"name": 7, "arguments": {}}</tool_call>',
    '<tool_call>{"name": "\\ud800"}</tool_call>',
    '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
    '<tool_call>{"name": "f", "arguments": "no"}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"a": "\\',
    '<tool_call>[{"name": "f"}]</tool_call>',
    f'<tool_call>{{"name": "{"n" * 400}"}}</tool_call>',
    "</think> <think>late</think>",
    "<think>never closed  \n",
    "[f(a=1), g(",
    "[f(a='\\x4",
    "[f(a=[{'k': 1}, ",
    "[f(1)] [f(a=1)]",
    "<|python_start|>f(a=1)",
    "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]",
    "a <function=f>x<parameter=a>1\n</function>\n<function=h>y</tool_call>",
    "<tool_call><function=f><parameter=a>1\n<parameter=o>\n</function>\n<parameter=a",
    "<tool_call><function=f>x<parameter=a>1</parameter>y</function>z</tool_call>",
    "<tool_call>f\n<arg_key>s</arg_key><arg_value>x\n<arg_key>a</arg_key>\n<arg_value>1",
    "<tool_call>f<arg_key>a</arg_key>1</arg_value></tool_call><tool_call>g</tool_call>",
    "<tool_call><arg_key>a</arg_key></tool_call>",
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.:0<|tool_call_argument_begin|>{}",
    "<|tool_calls_section_begin|><|tool_call_begin|>f:x<|tool_call_argument_begin|>{}",
    "<think>no end <|tool_calls_section_begin|><|tool_call_begin|>",
    '<minimax:tool_call><invoke name="f"><parameter name="s">x</invoke></minimax:tool_call>',
    "<seed:tool_call><function=f><parameter=s>\nx\n</seed:tool_call>",
    "functools[0] and functools[{]",
    "<function_calls>f(a=1)\n\ng(",
    '<tool_calls>{"name": "f"}{"name": "g"}',
    "  plain text \n ",
    "",
]


def make(
    tool_format: str,
    added: dict[str, int] | None = None,
    *,
    reasoning: str = "qwen3",
    **options: Any,
) -> ResponseParser:
    tools, thinking = TOOL_FORMATS[tool_format.split()[0]], REASONING_FORMATS[reasoning]
    literals = (*tools.literals(), *thinking.literals())
    return ResponseParser(
        ParserOptions(
            markers=MarkerTokens(added or {}, (), literals),
            tools=tools,
            reasoning=thinking,
            schemas=SCHEMAS,
            **options,
        )
    )


Result = tuple[str, str, list[tuple[str | None, str]], int]


def result(parser: ResponseParser, pieces: list[str]) -> Result:
    delta = ResponseDelta()
    for piece in pieces:
        parser.feed(piece)
        delta.extend(parser.take())
    parser.finish()
    delta.extend(parser.take())
    assert [call.index for call in delta.calls] == sorted(call.index for call in delta.calls)
    for call in delta.calls:
        assert call.name is not None or call.arguments, "an empty delta"
    for call in whole_calls(delta.calls):
        heads = [other for other in delta.calls if other.index == call.index and other.id]
        assert len(heads) == 1
    calls = [(call.name, call.arguments) for call in whole_calls(delta.calls)]
    return delta.reasoning, delta.content, calls, parser.num_whole_calls


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in pairwise(ends)]


@pytest.mark.parametrize("name", ANSWERS)
def test_arguments_pass_unchanged(name: str) -> None:
    whole = result(make(name), [ANSWERS[name]])
    assert whole == ("first <b", "ok", CALLS, 2)
    assert result(make(name), list(ANSWERS[name])) == whole


def test_tags_get_the_types_of_the_schema() -> None:
    reasoning, content, calls, _ = result(make("qwen3_coder"), list(TAGGED))
    assert (reasoning, content) == ("first <b", "ok")
    assert [name for name, _ in calls] == ["f", "g"]
    assert json.loads(calls[0][1]) == {"a": 3, "s": ' x <b>\n"', "o": {"l": [1]}}
    assert calls[1][1] == "{}"


@pytest.mark.parametrize("name", RAW_ANSWERS)
def test_raw_values_keep_their_white_space(name: str) -> None:
    reasoning, content, calls, num_whole = result(make(name), list(RAW_ANSWERS[name]))
    assert (reasoning, content, num_whole) == ("first <b", "ok", 2)
    assert [called for called, _ in calls] == ["f", "g"]
    assert json.loads(calls[0][1]) == {"a": 3, "s": RAW, "o": {"l": [1]}}
    assert calls[1][1] == "{}"


def test_python_calls_on_lines() -> None:
    _, content, calls, num_whole = result(make("olmo3"), list(PYTHON_LINES))
    assert (content, num_whole) == ("ok", 2)
    assert [(called, json.loads(arguments)) for called, arguments in calls] == [
        ("f", {"a": 1.5, "s": "x", "o": None}),
        ("g", {"b": [True, None]}),
    ]


def test_a_list_of_calls_begins_the_answer() -> None:
    text = '[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]'
    assert result(make("xlam"), list(text))[1:] == ("", [("f", '{"a": 1}'), ("g", "{}")], 2)
    person = '[{"name": "Ann", "arguments": {}}]'
    assert result(make("xlam"), list(person))[1:] == (person, [], 0)


def test_functools_is_a_word_too() -> None:
    for text in ("import functools and functools[0]", 'functools {"name": "f"}'):
        assert result(make("phi4_mini_json"), list(text))[1:] == (text, [], 0)


@pytest.mark.parametrize("name", ["glm45", "glm47"])
@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ("f\n<arg_key>a</arg_key>\n<arg_value>3</arg_value>\n", {"a": 3}),
        ("\n f <arg_key>a</arg_key> \n <arg_value>3</arg_value>", {"a": 3}),
        ("f", {}),
        ("f\n", {}),
        # Values without a type in the schema are JSON if they can be.
        ("f<arg_key>z</arg_key><arg_value>5</arg_value>", {"z": 5}),
        ("f<arg_key>z</arg_key><arg_value>5 m</arg_value>", {"z": "5 m"}),
        # A value without its closing tag.
        (
            "f\n<arg_key>s</arg_key>\n<arg_value>hi\n<arg_key>a</arg_key>\n<arg_value>3"
            "</arg_value>\n",
            {"s": "hi", "a": 3},
        ),
    ],
)
def test_calls_of_glm(name: str, body: str, arguments: dict[str, Any]) -> None:
    text = f"<tool_call>{body}</tool_call>"
    whole = result(make(name), [text])
    assert whole[3] == 1
    assert [(called, json.loads(written)) for called, written in whole[2]] == [("f", arguments)]
    assert result(make(name), list(text)) == whole


@pytest.mark.parametrize("body", ["", "\n", "<arg_key>a</arg_key><arg_value>1</arg_value>"])
def test_a_call_without_a_name_is_content(body: str) -> None:
    text = f"<tool_call>{body}</tool_call>"
    assert result(make("glm47"), list(text))[1:] == (text, [], 0)


def test_a_value_without_its_opening_tag_makes_the_call_incomplete() -> None:
    text = "<tool_call>f<arg_key>a</arg_key>1</arg_value></tool_call><tool_call>g</tool_call>"
    assert result(make("glm47"), list(text))[2:] == ([("f", ""), ("g", "{}")], 1)


def section(*ids: str) -> str:
    calls = "".join(
        f"<|tool_call_begin|>{call_id}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
        for call_id in ids
    )
    return f"<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>"


@pytest.mark.parametrize(
    ("written", "name", "call_id"),
    [
        ("functions.f:0", "f", "functions.f:0"),
        (" functions.f:12\n", "f", "functions.f:12"),
        ("f:3", "f", "f:3"),
        ("functions.a.b:0", "a.b", "functions.a.b:0"),
        ("functions.a:b:7", "a:b", "functions.a:b:7"),
        ("functions.functions.f:0", "functions.f", "functions.functions.f:0"),
        ("functions.f", "f", None),
        ("functions.f:", "f:", None),
        ("functions.f:x", "f:x", None),
        ("functions.f:²", "f:²", None),
    ],
)
def test_the_id_of_a_call_is_that_of_the_model(
    written: str, name: str, call_id: str | None
) -> None:
    for length in (1, 7, 1000):
        parser = make("kimi_k2")
        text = section(written)
        for at in range(0, len(text), length):
            parser.feed(text[at : at + length])
        parser.finish()
        (call,) = whole_calls(parser.take().calls)
        assert call.name == name
        assert call.id == call_id or (call_id is None and str(call.id).startswith("call_"))
    assert not result(make("kimi_k2"), [section("functions.:0")])[2]


def test_a_repeated_id_is_replaced() -> None:
    parser = make("kimi_k2")
    parser.feed(section("functions.f:0", "functions.f:0", "functions.f:1"))
    parser.finish()
    ids = [str(call.id) for call in whole_calls(parser.take().calls)]
    assert [ids[0], ids[2]] == ["functions.f:0", "functions.f:1"]
    assert ids[1].startswith("call_")


ONE_CALL = "<parameter=s>\nhi <b>\n</parameter>\n</function>"


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"ok\n\n<function=f>\n{ONE_CALL}\n</tool_call>", "ok", [("f", {"s": "hi <b>"})]),
        (f"<function=f>{ONE_CALL}", "", [("f", {"s": "hi <b>"})]),
        (
            f"<function=f>{ONE_CALL}\n<function=f>{ONE_CALL}</tool_call> x",
            "",
            [("f", {"s": "hi <b>"})] * 2,
        ),
        (f"see <function=h>{ONE_CALL} there", f"see <function=h>{ONE_CALL} there", []),
        (f"<function={'n' * 300}", f"<function={'n' * 300}", []),
        (
            f"<function=f>{ONE_CALL}\n<tool_call>\n<function=g></function>\n</tool_call>",
            "",
            [("f", {"s": "hi <b>"}), ("g", {})],
        ),
        ("Use `<function=f>` here. The end.", "Use `<function=f>` here. The end.", []),
        ("<function=g>\n</function>", "", [("g", {})]),
        ("<function=g>", "<function=g>", []),
    ],
)
def test_a_call_without_the_marker_of_its_section(
    text: str, content: str, calls: list[tuple[str, Any]]
) -> None:
    whole = result(make("qwen3_coder"), [text])
    assert whole[1] == content
    assert [(name, json.loads(arguments)) for name, arguments in whole[2]] == calls
    assert result(make("qwen3_coder"), list(text)) == whole


def test_an_answer_that_begins_with_no_marker_is_content() -> None:
    text = f"<function=f>{ONE_CALL} <tool_call><function=g></function></tool_call>"
    assert result(make("qwen3_coder", calls_begin_answer=True), [text])[1:3] == (text, [])


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ("<parameter=s>\nhi\n</function>\n</tool_call>", {"s": "hi"}),
        ("<parameter=s>\nhi\n</function>", {"s": "hi"}),
        ("<parameter=s>\nhi\n</function>\n<function=g></function></tool_call>", {"s": "hi"}),
        ("<parameter=s>hi\n<parameter=a>\n3\n</parameter></function>", {"s": "hi", "a": 3}),
        # Text that looks like a tag.
        ("<parameter=s>\nx\n</function>\ny</parameter></function>", {"s": "x\n</function>\ny"}),
        ("<parameter=s>\n<parameter=zz>\n</parameter></function>", {"s": "<parameter=zz>"}),
        ("<parameter=s>x <parameter=a> y</parameter></function>", {"s": "x <parameter=a> y"}),
        (
            f"<parameter=s>\nx\n<parameter={'n' * 300}</parameter></function>",
            {"s": f"x\n<parameter={'n' * 300}"},
        ),
    ],
)
def test_values_without_their_closing_tag(body: str, arguments: dict[str, Any]) -> None:
    text = f"<tool_call>\n<function=f>\n{body}"
    whole = result(make("qwen3_coder"), [text])
    assert whole[2][0][0] == "f"
    assert json.loads(whole[2][0][1]) == arguments
    assert result(make("qwen3_coder"), list(text)) == whole


@pytest.mark.parametrize("added", [{}, {"<tool_call>": 1, "</tool_call>": 2}])
@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        (
            "qwen3_coder",
            '<function=f><parameter=o>{"a": "\\ud83d \\ud83d\\ude00 \\ud801"}</parameter>'
            "</function>",
            '{"o": {"a": "\\ud83d 😀 \\ud801"}}',
        ),
        ("hermes", '{"name": "f", "arguments": "{\\"a\\": \\"\\ud83d\\"}"}', '{"a": "\\ud83d"}'),
        ("hermes", '{"name": "f", "arguments": "{\\"a\\": \\"\\ud800\\"}"}', '{"a": "\\ud800"}'),
    ],
)
def test_halves_of_characters_stay_escaped(
    name: str, text: str, arguments: str, added: dict[str, int]
) -> None:
    parser = make(name, added)
    opens = "<tool_call>"
    if added:
        parser.add_token(1, opens, len(opens))
    _, _, calls, _ = result(parser, [opens, text])
    assert calls == [("f", arguments)]


@pytest.mark.parametrize(
    ("written", "value"),
    [("9" * 400, int("9" * 400)), ("9" * 5000, "9" * 5000), ("1e999", "1e999"), ("NaN", "NaN")],
)
def test_numbers_that_no_float_holds(written: str, value: object) -> None:
    text = f"<tool_call><function=f><parameter=a>{written}</parameter></function></tool_call>"
    _, _, calls, _ = result(make("qwen3_coder"), [text])
    assert json.loads(calls[0][1]) == {"a": value}


def test_an_object_with_a_number_that_is_not_json_is_text() -> None:
    text = '<tool_call><function=f><parameter=o>{"a": NaN}</parameter></function></tool_call>'
    _, _, calls, _ = result(make("qwen3_coder"), [text])
    assert json.loads(calls[0][1]) == {"o": '{"a": NaN}'}
    assert value_types({"properties": {"a": {"enum": [10**400]}}}, "a") == ("integer", "number")


@settings(max_examples=300, deadline=None)
@given(
    name=st.sampled_from([*ANSWERS, *OTHER_ANSWERS]),
    hostile=st.sampled_from([*HOSTILE, None, None]),
    end=st.integers(0, 1000),
    places=st.lists(st.integers(0, 1000), max_size=60),
)
def test_any_cut_gives_the_same(
    name: str, hostile: str | None, end: int, places: list[int]
) -> None:
    answer = OTHER_ANSWERS.get(name) or ANSWERS[name]
    text = hostile if hostile is not None else answer[: max(1, end)]
    assert result(make(name), cut(text, places)) == result(make(name), [text])


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("<tool_call>hello</tool_call> and more", "<tool_call>hello</tool_call> and more", []),
        ("  plain text \n ", "  plain text \n ", []),
        ('<tool_call>{"name": "f", "arguments": {"a": ', "", [("f", '{"a": ')]),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}', "", [("f", '{"a": 1}')]),
        ("</think> x", "</think> x", []),
    ],
)
def test_what_is_no_call_is_content(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert result(make("hermes"), [text])[1:3] == (content, calls)


def test_an_answer_of_json_is_a_call_only_with_the_name_of_a_tool() -> None:
    person, call = '{"name": "Ann", "age": 3}', '{"name": "f", "parameters": {"a": 1}}'
    assert result(make("llama3_json"), [person])[1:3] == (person, [])
    assert result(make("llama3_json"), [call])[1:3] == ("", [("f", '{"a": 1}')])


def test_a_marker_token_is_no_text_and_text_is_no_marker_token() -> None:
    added = {"<tool_call>": 7, "</tool_call>": 8}
    parser = make("hermes", added)
    pieces = [
        (1, "say <tool_call> "),
        (7, "<tool_call>"),
        (1, '{"name": "f", "arguments": {"a": "'),
        (8, "</tool_call>"),
        (1, '</tool_call>"}}'),
        (8, "</tool_call>"),
    ]
    num_chars = 0
    for token_id, text in pieces:
        num_chars += len(text)
        parser.add_token(token_id, text, num_chars)
    _, content, calls, num_whole = result(parser, ["".join(text for _, text in pieces)])
    assert content == "say <tool_call>"
    assert calls == [("f", '{"a": "</tool_call></tool_call>"}')]
    assert num_whole == 1


def test_the_answer_ends_with_the_last_call_that_is_allowed() -> None:
    parser = make("hermes", max_calls=1)
    _, _, calls, _ = result(parser, list(ANSWERS["hermes"]))
    assert calls == CALLS[:1]
    assert parser.is_over


@pytest.mark.parametrize("opening", ["", "<think>", " <think>\n"])
def test_calls_end_the_reasoning_of_kimi(opening: str) -> None:
    text = f"{opening}so\n{section('functions.f:0')}"
    options: dict[str, Any] = {"reasoning": "kimi_k2", "starts_inside_reasoning": True}
    whole = result(make("kimi_k2", **options), [text])
    assert whole == ("so", "", [("f", "{}")], 1)
    assert result(make("kimi_k2", **options), list(text)) == whole
    closed = text.replace("so\n", "so\n</think>ok ")
    assert result(make("kimi_k2", **options), list(closed)) == ("so", "ok", [("f", "{}")], 1)
    parser = make("kimi_k2", **options)
    parser.feed(text, 5)
    parser.feed("more", 2)
    assert not parser.in_reasoning
    assert parser.take().num_reasoning_tokens == 5


def test_calls_do_not_end_other_reasoning() -> None:
    text = f"<think>so {section('functions.f:0')}</think>ok"
    assert result(make("kimi_k2"), list(text))[1:] == ("ok", [], 0)


def test_the_markers_of_reasoning() -> None:
    text = "<seed:think>so</seed:think>ok"
    assert result(make("seed_oss", reasoning="seed_oss"), list(text))[:2] == ("so", "ok")
    inside = {name for name, form in REASONING_FORMATS.items() if form.starts_inside}
    assert inside == {"deepseek_r1", "kimi_k2", "minimax_m2", "seed_oss", "step3"}


def test_reasoning_that_the_prompt_opened() -> None:
    parser = make("hermes", starts_inside_reasoning=True)
    assert parser.in_reasoning
    assert result(parser, ["so\n", "</thi", "nk>\n\nok"])[:2] == ("so", "ok")


def work(name: str, text: str, length: int) -> tuple[int, int, list[CallDelta]]:
    """Characters that the parser holds, summed over pieces of one length, function calls, answer.

    No search of a piece looks at more than what is held then.
    """
    parser = make(name)
    num_held = num_calls = 0
    delta = ResponseDelta()

    def count(*_: object) -> None:
        nonlocal num_calls
        num_calls += 1

    sys.setprofile(count)
    try:
        for at in range(0, len(text), length):
            parser.feed(text[at : at + length])
            delta.extend(parser.take())
            num_held += len(parser._cursor._text)
        parser.finish()
    finally:
        sys.setprofile(None)
    return num_held, num_calls, whole_calls(delta.calls)


@pytest.mark.parametrize(
    ("name", "opening", "body"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "', "x\\n y"),
        ("hermes", '<tool_call>{"name": "f", "arguments": ', "[{"),
        ("hermes", '<tool_call>{"arguments": {"a": "', "x\\n y"),
        ("hermes", "text", " \n \t"),
        ("hermes", "", "<tool_call"),
        ("hermes", "", "<tool_call>"),
        ("hermes", '<tool_call>{"name": "f"}', " \n"),
        ("mistral", "", "[TOOL_CALLS]["),
        ("mistral", "[TOOL_CALLS]f[ARGS]", "{"),
        ("llama3_json", '{"name": "', "f"),
        ("deepseek_v3", ANSWERS["deepseek_v3"].partition("{")[0], '{"a": '),
        ("qwen3_coder", "<tool_call><function=f>", "<parameter=a>"),
        ("qwen3_coder", "<tool_call><function=f><parameter=a>", "</param"),
        ("qwen3_coder", "<tool_call><function=f><parameter=a>", "\n<parameter="),
        ("qwen3_coder", "<tool_call><function=f><parameter=a>", "\n</function> "),
        ("qwen3_coder", "", "<function="),
        ("granite", "<tool_call>[", '{"name": "f"}, '),
        ("jamba", "<tool_calls>", "[]"),
        ("pythonic", "[f(a='", "\\x41\\\\"),
        ("pythonic", "[f(a=", "[{'k': "),
        ("pythonic", "[f(a=", "1"),
        ("pythonic", "", "["),
        ("hermes", "<think>", "</think"),
        ("kimi_k2", ANSWERS["kimi_k2"].partition("{")[0], '{"a": '),
        ("kimi_k2", "", "<|tool_calls_section_begin|><|tool_call_begin|>f:0"),
        ("kimi_k2", "<|tool_calls_section_begin|>", section("f:0")[28:-26]),
        ("deepseek_v31", ANSWERS["deepseek_v31"].partition("{")[0], '{"a": '),
        ("glm45", "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>", "\n<arg_key>"),
        ("glm47", "<tool_call>f<arg_key>s</arg_key><arg_value>", "</arg_value"),
        ("glm47", "<tool_call>f", "<arg_key>s</arg_key><arg_value>x</arg_value>"),
        ("glm47", "<tool_call>f<arg_key>s</arg_key>", " \n"),
        ("glm47", "", "<tool_call>"),
        ("minimax_m2", '<minimax:tool_call><invoke name="f">', '<parameter name="'),
        ("phi4_mini_json", "", "functools["),
        ("minimax", "<tool_calls>", '{"name": "f"}\n'),
        ("granite-20b-fc", "", "<function_call> {"),
        ("olmo3", "<function_calls>", "f(a=1)\n"),
    ],
)
def test_work_is_linear(name: str, opening: str, body: str) -> None:
    """Four times the text is four times the work; quadratic work would be sixteen times."""
    short, long = opening + body * 1_000, opening + body * 4_000
    num_held, num_calls, _ = work(name, short, 4)
    assert num_held < 16 * len(short)
    longer_held, more_calls, _ = work(name, long, 4)
    assert longer_held < 16 * len(long)
    assert more_calls < 6 * num_calls


def nested_arguments(num_objects: int) -> str:
    """Some 50 bytes an object, in which every format's markers occur."""
    value = 'x \\" } ] [ { </tool_call> [TOOL_CALLS] ``` ü'
    return json.dumps({"a": [{"b": value}] * num_objects}, ensure_ascii=False)


@pytest.mark.parametrize("name", ANSWERS)
def test_a_megabyte_of_arguments_passes_unchanged(name: str) -> None:
    arguments = nested_arguments(21_000)
    assert len(arguments.encode()) > 1_000_000
    text = ANSWERS[name].replace(ARGUMENTS, arguments)
    assert result(make(name), [text])[2][0] == ("f", arguments)


@pytest.mark.parametrize("name", ANSWERS)
def test_long_arguments_in_pieces_are_little_work(name: str) -> None:
    """A quarter of a megabyte: counting the calls takes longest, and quadratic work shows."""
    arguments = nested_arguments(5_000)
    text = ANSWERS[name].replace(ARGUMENTS, arguments)
    num_held, num_calls, calls = work(name, text, 48)
    assert (calls[0].name, calls[0].arguments) == ("f", arguments)
    assert num_held < 2 * len(text)
    assert num_calls < 8 * len(text)
