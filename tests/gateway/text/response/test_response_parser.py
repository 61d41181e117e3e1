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
OTHER_ANSWERS = {"qwen3_coder": TAGGED, "pythonic": PYTHON}
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
    "  plain text \n ",
    "",
]


def make(tool_format: str, added: dict[str, int] | None = None, **options: Any) -> ResponseParser:
    tools, reasoning = TOOL_FORMATS[tool_format.split()[0]], REASONING_FORMATS["qwen3"]
    literals = (*tools.literals(), *reasoning.opens, *reasoning.closes)
    return ResponseParser(
        ParserOptions(
            markers=MarkerTokens(added or {}, (), literals),
            tools=tools,
            reasoning=reasoning,
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
