"""The parser gives what transformers' `parse_response` gives for the same format."""

import json
from typing import Any

import pytest
from transformers.utils.chat_parsing import parse_response

from taco_gateway.text.response.built_in import REASONING_FORMATS, TOOL_FORMATS
from taco_gateway.text.response.marker_tokens import MarkerTokens
from taco_gateway.text.response.response_delta import ResponseDelta, whole_calls
from taco_gateway.text.response.response_parser import ParserOptions, ResponseParser

REASONING = {"open": "<think>", "close": "</think>"}
WHOLE_OBJECT = {"type": "function", "function": "{content}"}
# transformers' own form of the formats, without an anchor in the prompt.
TEMPLATES: dict[str, dict[str, Any]] = {
    "hermes": {"open_pattern": r"\s*<tool_call>", "close": "</tool_call>", "repeats": True},
    "internlm": {
        "open_pattern": r"\s*<\|action_start\|><\|plugin\|>",
        "close": "<|action_end|>",
        "repeats": True,
    },
}
BODIES = [
    '{"name": "f", "arguments": {"a": 1.5, "s": "x \\" }] ü", "o": {"l": [1, {}], "n": null}}}',
    '{"name": "g", "arguments": {}}',
]
MARKERS = {
    "hermes": ("<tool_call>", "</tool_call>"),
    "internlm": ("<|action_start|><|plugin|>", "<|action_end|>"),
}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("reasoning", ["", "<think>\nhm <b\n</think>\n\n"])
@pytest.mark.parametrize("content", ["", "Let me see.\n"])
@pytest.mark.parametrize("num_calls", [0, 1, 2])
def test_equals_parse_response(name: str, reasoning: str, content: str, num_calls: int) -> None:
    opens, closes = MARKERS[name]
    calls = "\n".join(f"{opens}\n{body}\n{closes}" for body in BODIES[:num_calls])
    text = reasoning + content + calls
    field = {**TEMPLATES[name], "content": "json", "transform": WHOLE_OBJECT}
    template = {
        "start_anchor": "assistant:",
        "fields": {"reasoning_content": REASONING, "tool_calls": field, "content": {}},
    }
    theirs = parse_response(text, template, prefix="")

    tools, thinking = TOOL_FORMATS[name], REASONING_FORMATS["qwen3"]
    parser = ResponseParser(
        ParserOptions(markers=MarkerTokens({}, (), ()), tools=tools, reasoning=thinking)
    )
    delta = ResponseDelta()
    for char in text:
        parser.feed(char)
        delta.extend(parser.take())
    parser.finish()
    delta.extend(parser.take())
    ours = [
        {"name": call.name, "arguments": json.loads(call.arguments)}
        for call in whole_calls(delta.calls)
    ]
    assert ours == [call["function"] for call in theirs.get("tool_calls", [])]
    assert delta.reasoning == theirs.get("reasoning_content", "")
    assert delta.content.strip() == theirs.get("content", "")
