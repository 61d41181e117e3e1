"""The parser gives what transformers' `parse_response` gives for the same format."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils.chat_parsing import parse_response

from support.response_samples import (
    REASONING_SAMPLES,
    SAMPLES,
    SCHEMAS,
    TOOLS,
    VALUES,
    pieces,
    response_template,
)
from taco_gateway.text.response.built_in import REASONING_FORMATS, TOOL_FORMATS
from taco_gateway.text.response.formats import ReasoningFormat, ToolFormat
from taco_gateway.text.response.marker_tokens import MarkerTokens
from taco_gateway.text.response.response_delta import ResponseDelta, whole_calls
from taco_gateway.text.response.response_parser import ParserOptions, ResponseParser
from taco_gateway.text.response.response_template import reasoning_format, tool_format
from taco_gateway.text.response.template_patterns import TemplateError

Parts = tuple[str, str, list[dict[str, Any]]]
WITH_TEMPLATE = [name for name, sample in SAMPLES.items() if sample.template is not None]


def ours(
    tools: ToolFormat, reasoning: ReasoningFormat, text: str, lengths: tuple[int, ...]
) -> Parts:
    parser = ResponseParser(
        ParserOptions(
            markers=MarkerTokens({}, (), ()),
            tools=tools,
            reasoning=reasoning,
            schemas=SCHEMAS,
            starts_inside_reasoning=reasoning.starts_inside,
        )
    )
    delta = ResponseDelta()
    for piece in pieces(text, lengths):
        parser.feed(piece)
        delta.extend(parser.take())
    parser.finish()
    delta.extend(parser.take())
    calls = [
        {"name": call.name, "arguments": json.loads(call.arguments)}
        for call in whole_calls(delta.calls)
    ]
    return delta.reasoning.strip(), delta.content.strip(), calls


def theirs(name: str, reasoning: str, text: str) -> Parts:
    message = parse_response(
        text, response_template(SAMPLES[name], reasoning), prefix="", tools=TOOLS
    )
    calls = [call["function"] for call in message.get("tool_calls", [])]
    return message.get("reasoning_content", ""), message.get("content", ""), calls


@settings(max_examples=20, deadline=None)
@given(
    has_reasoning=st.booleans(),
    content=st.sampled_from(["", "Let me see.", "a <b> [c] {d} "]),
    num_calls=st.integers(0, 2),
    lengths=st.lists(st.integers(1, 16), min_size=1, max_size=20).map(tuple),
)
@pytest.mark.parametrize("reasoning", REASONING_SAMPLES)
@pytest.mark.parametrize("name", WITH_TEMPLATE)
def test_equals_parse_response(
    name: str,
    reasoning: str,
    has_reasoning: bool,
    content: str,
    num_calls: int,
    lengths: tuple[int, ...],
) -> None:
    sample = SAMPLES[name]
    num_calls = min(num_calls, sample.max_calls)
    if has_reasoning or reasoning == "deepseek_r1":
        content = REASONING_SAMPLES[reasoning].text + content
    text = content + sample.write(num_calls)
    expected = theirs(name, reasoning, text)
    assert [call["arguments"] for call in expected[2]] == list(VALUES[:num_calls])
    tools, thinking = TOOL_FORMATS[sample.tools], REASONING_FORMATS[reasoning]
    assert ours(tools, thinking, text, lengths) == expected

    template = response_template(sample, reasoning)
    if sample.is_expressible:
        auto = tool_format(template), reasoning_format(template)
        assert ours(*auto, text, lengths) == expected
    else:
        with pytest.raises(TemplateError, match=r"^fields\.tool_calls: "):
            tool_format(template)
