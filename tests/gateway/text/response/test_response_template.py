"""`auto`: descriptions from a checkpoint's response template, or one clear error."""

import json
from typing import Any

import pytest
from transformers.utils.chat_parsing import parse_response

from support.response_samples import SAMPLES, response_template
from taco_gateway.text.response.formats import (
    JsonCall,
    NamedCall,
    ReasoningFormat,
    TaggedCall,
    ToolFormat,
)
from taco_gateway.text.response.marker_tokens import MarkerTokens
from taco_gateway.text.response.response_delta import whole_calls
from taco_gateway.text.response.response_parser import ParserOptions, ResponseParser
from taco_gateway.text.response.response_template import reasoning_format, tool_format
from taco_gateway.text.response.template_patterns import TemplateError

BY_NAME = {"name": "{name}", "arguments": "{content}"}


def template(**fields: Any) -> dict[str, Any]:
    return {"start_anchor": "assistant", "fields": fields}


def calls(**field: Any) -> dict[str, Any]:
    return template(tool_calls={"content": "json", "transform": {"function": BY_NAME}, **field})


def test_each_form_of_calls() -> None:
    assert tool_format(response_template(SAMPLES["hermes"], "qwen3")) == ToolFormat(
        opens=("<tool_call>",),
        closes=("</tool_call>",),
        json_call=JsonCall(name_key="name", argument_keys=("arguments",)),
    )
    assert tool_format(response_template(SAMPLES["granite"], "qwen3")) == ToolFormat(
        opens=("<|tool_call|>", "<tool_call>"),
        has_list=True,
        separator=",",
        json_call=JsonCall(name_key="name", argument_keys=("arguments",)),
    )
    named = calls(open_pattern=r"<call>\s*to=(?P<name>\w+)\s*<args>", close="</call>")
    assert tool_format(named) == ToolFormat(
        opens=("<call>",),
        closes=("</call>",),
        named_call=NamedCall(before="to=", name_ends=("<args>",)),
    )
    directly = calls(open_pattern=r"<call>(?P<name>[\w.-]+)", close="</call>")
    assert tool_format(directly) == ToolFormat(
        opens=("<call>",), closes=("</call>",), named_call=NamedCall(name_ends=("{",))
    )
    assert tool_format(response_template(SAMPLES["qwen3_coder"], "qwen3")) == ToolFormat(
        opens=("<tool_call>",),
        closes=("</tool_call>",),
        tagged_call=TaggedCall(
            name_opens="<function=",
            name_closes=">",
            key_opens="<parameter=",
            key_closes=">",
            value_closes="</parameter>",
            call_closes="</function>",
            trims_values=True,
        ),
    )


def test_reasoning() -> None:
    for name in ("reasoning_content", "reasoning", "thinking"):
        field = {"open_pattern": r"(?:\s*<a>\n?|\[b\]|^)", "close_pattern": r"\s*</(?:a|b)>"}
        assert reasoning_format(template(**{name: field})) == ReasoningFormat(
            opens=("<a>", "[b]"), closes=("</a>", "</b>"), starts_inside=True
        )
    implicit = template(thinking={"close": "</think>"})
    assert reasoning_format(implicit).starts_inside


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([], "not an object"),
        ({"version": 2, "fields": {"content": {}}}, "version 2"),
        ({"fields": {}}, "no fields"),
        ({"fields": {"content": 1}}, "fields.content is not an object"),
        ({"fields": {"content": {}}, "x": 1}, "x is unknown"),
        ({"fields": {"content": {"x": 1}}}, "fields.content.x is unknown"),
        (template(citations={}), "fields.citations: an answer has no such part"),
        (template(content={}), "no tool_calls"),
        (template(content={"open": "<a>"}), "what opens the content is no special token"),
        (calls(), "open is not a marker and"),
        (calls(open="<a>"), "open is not a marker and"),
        (calls(open="<a>", open_pattern="<a>"), "exclude each other"),
        (calls(open=[]), "open is not a marker and"),
        (calls(open=["<a>", 1]), "neither a text nor a list"),
        (calls(open_pattern=7), "open_pattern is not a string"),
        (calls(open_pattern=r"<a>(?P<name>\w+).*?<b>"), "has '.*?<b>'"),
        (calls(open_pattern=r"(?=<a>)"), "has"),
        (calls(open_pattern=r"<a>+(?P<name>\w+)"), "has '+"),
        (calls(open_pattern=r"<a(?P<name>\w+"), "has '(?P<name"),
        (calls(open_pattern="(?:" * 2000), "more than 1000 characters"),
        (calls(open_pattern="(?:a|b)" * 10), "too many alternatives"),
        (calls(open_pattern=r"<a>(?P<name>\w+)", close_pattern=r"\d"), "close_pattern"),
        (calls(open_pattern=r"<a>(?P<other>\w+)"), "open is not a marker and"),
        (calls(content="kv-lines"), "'kv-lines' cannot be streamed"),
        (calls(content="text"), "'text' cannot be streamed"),
        (calls(content_args={"unquoted_keys": True}), "JSON that is no JSON"),
        (calls(content_args=[]), "content_args is not an object"),
        (calls(transform=None), "transform.function.name is not one placeholder"),
        (calls(transform={"function": {"name": "{a.b}"}}), "transform.function.arguments"),
        (
            calls(
                open="<a>", transform={"function": {"name": "{content.a.b}", "arguments": "{x}"}}
            ),
            "'content.a.b' is not a key",
        ),
        (calls(open="<a>", transform_each=True), "a list of calls has no content"),
        (
            calls(open=["<a>", "<a>b"], transform={"function": "{content}"}),
            "a marker begins with another one",
        ),
        (calls(transform={"function": "{content}"}), "it has no open"),
        (
            calls(content="xml-inline", open_pattern=r"<a>(?P<name>\w+)>", close="</a>"),
            "tag_pattern is not",
        ),
    ],
)
def test_what_a_description_cannot_say_is_an_error(given: Any, reason: str) -> None:
    with pytest.raises(TemplateError) as error:
        tool_format(given)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        (None, "describes no reasoning"),
        ({"open": "<a>"}, "has no close"),
        ({"open": "<a>", "close": "</a>", "join": ""}, "in several parts"),
        ({"open": "<a>", "close": "</a>", "content": "json"}, "not text"),
        ({"open_pattern": r"<a>(?P<x>\w+)", "close": "</a>"}, "not one fixed text"),
    ],
)
def test_reasoning_that_a_description_cannot_say(field: Any, reason: str) -> None:
    fields = {"content": {}} | ({} if field is None else {"thinking": field})
    with pytest.raises(TemplateError) as error:
        reasoning_format(template(**fields))
    assert reason in str(error.value)


QWEN = (
    "<tool_call>\n<function=get_weather>\n<parameter=places>\n"
    '[{"country": "France", "city": "Paris"}]\n</parameter>\n<parameter=units>\n celsius \n'
    "</parameter>\n<parameter=days>3</parameter>\n</function>\n</tool_call>"
)


@pytest.mark.parametrize("value_parser", [None, {"name": "json", "args": {"allow_non_json": True}}])
@pytest.mark.parametrize("close", ["</tool_call>", "</function>"])
def test_values_without_a_schema(value_parser: Any, close: str) -> None:
    """Text beside the tags of parameters is left out, as transformers does."""
    arguments: dict[str, Any] = {
        "tag_pattern": r"<parameter=(?P<key>\w+)>\s*(?P<value>.*?)\s*</parameter>"
    }
    if value_parser is not None:
        arguments["value_parser"] = value_parser
    given = calls(
        content="xml-inline",
        content_args=arguments,
        open_pattern=r"<tool_call>\s*<function=(?P<name>\w+)>",
        close=close,
        repeats=True,
    )
    (expected,) = parse_response(QWEN, given, prefix="")["tool_calls"]
    parser = ResponseParser(
        ParserOptions(markers=MarkerTokens({}, (), ()), tools=tool_format(given))
    )
    parser.feed(QWEN)
    parser.finish()
    (call,) = whole_calls(parser.take().calls)
    assert {"name": call.name, "arguments": json.loads(call.arguments)} == expected["function"]


GLM = (
    "<tool_call>get_weather\n<arg_key>places</arg_key>\n<arg_value>[1, {}]</arg_value>\n"
    "<arg_key>units</arg_key>\n<arg_value>\n celsius \n</arg_value>\n</tool_call>"
)


@pytest.mark.parametrize(
    "value_parser",
    [None, {"name": "text"}, {"name": "json", "args": {"allow_non_json": True}}],
)
@pytest.mark.parametrize("space", ["", r"\s*"])
def test_values_with_an_opening_tag(value_parser: Any, space: str) -> None:
    """White space around a value stays where transformers keeps it."""
    pattern = rf"<arg_value>{space}(?P<value>.*?){space}</arg_value>"
    arguments: dict[str, Any] = {"tag_pattern": rf"<arg_key>(?P<key>\w+)</arg_key>\s*{pattern}"}
    if value_parser is not None:
        arguments["value_parser"] = value_parser
    given = calls(
        content="xml-inline",
        content_args=arguments,
        open_pattern=r"<tool_call>\s*(?P<name>[^\n<]+)",
        close="</tool_call>",
        repeats=True,
    )
    trims = bool(space) or value_parser is not None
    assert tool_format(given) == ToolFormat(
        opens=("<tool_call>",),
        tagged_call=TaggedCall(
            name_opens="",
            name_closes="",
            key_opens="<arg_key>",
            key_closes="</arg_key>",
            value_opens="<arg_value>",
            value_closes="</arg_value>",
            call_closes="</tool_call>",
            trims_values=trims,
            keeps_spaces=not trims,
            guesses_types=value_parser is not None and value_parser["name"] == "json",
        ),
    )
    (expected,) = parse_response(GLM, given, prefix="")["tool_calls"]
    parser = ResponseParser(
        ParserOptions(markers=MarkerTokens({}, (), ()), tools=tool_format(given))
    )
    parser.feed(GLM)
    parser.finish()
    (call,) = whole_calls(parser.take().calls)
    assert {"name": call.name, "arguments": json.loads(call.arguments)} == expected["function"]
