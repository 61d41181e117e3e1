"""Templates of checkpoints that mark the content: special tokens are removed, others an error."""

from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
from transformers.utils.chat_parsing import parse_response

from support.checkpoint_tokenizer import trained_tokenizer
from taco_gateway.text.response.response_delta import ResponseDelta, whole_calls
from taco_gateway.text.response.response_formats import ResponseFormats
from taco_gateway.text.response.response_parser import ResponseParser
from taco_gateway.text.tokenizer.tokenizer import FastTokenizer
from taco_proto.errors import ConfigurationError

# The forms of Cohere's Command, Baidu's Ernie and OpenAI's gpt-oss.
COMMAND = {
    "start_anchor": "<|CHATBOT_TOKEN|>",
    "fields": {
        "content": {"open": "<|START_RESPONSE|>", "close": "<|END_RESPONSE|>"},
        "thinking": {"open": "<|START_THINKING|>", "close": "<|END_THINKING|>"},
        "tool_calls": {
            "open": "<|START_ACTION|>", "close": "<|END_ACTION|>", "content": "json",
            "transform_each": True,
            "transform": {"function": {"name": "{tool_name}", "arguments": "{parameters}"}},
        },
    },
}  # fmt: skip
ERNIE = {
    "fields": {
        "thinking": {"open_pattern": r"(?:^|<think>\s*)", "close": "</think>"},
        "content": {"open": "<response>\n", "close_pattern": r"\n?</response>"},
        "tool_calls": {
            "open": "<tool_call>", "close": "</tool_call>", "content": "json",
            "transform": {"function": "{content}"},
        },
    },
}  # fmt: skip
HARMONY = {
    "fields": {
        "thinking": {"open": "<|channel|>analysis<|message|>", "close": "<|end|>"},
        "content": {"open": "<|channel|>final<|message|>", "close": "<|end|>"},
        "tool_calls": {
            "open_pattern": r"<\|channel\|>commentary to=(?P<name>\w+).*?<\|message\|>",
            "close": "<|call|>", "content": "json",
            "transform": {"function": {"name": "{name}", "arguments": "{content}"}},
        },
    },
}  # fmt: skip
MARKERS = [f"<|{side}_{name}|>" for name in ("RESPONSE", "THINKING", "ACTION")
           for side in ("START", "END")] + ["<|channel|>", "<|message|>"]  # fmt: skip
THOUGHT = "<|START_THINKING|>I see.<|END_THINKING|>"
SAID = "<|START_RESPONSE|>It is é 5.<|END_RESPONSE|>"
CALLED = '<|START_ACTION|>[\n{"tool_name": "f", "parameters": {"a": 1}}]<|END_ACTION|>'
SCHEMAS = {"f": {"type": "object"}}


def formats(template: dict[str, Any], tools: str | None, reasoning: str | None) -> ResponseFormats:
    backend = trained_tokenizer()
    backend.add_special_tokens(
        [tokenizers.AddedToken(text, special=True, normalized=False) for text in MARKERS]
    )
    tokenizer = FastTokenizer(backend)
    tokenizer.settings = SimpleNamespace(response_template=template)  # type: ignore[assignment]
    return ResponseFormats(tokenizer, tools, reasoning)


@pytest.mark.parametrize("text", [THOUGHT + SAID, SAID, THOUGHT + CALLED, CALLED, "plain"])
def test_special_tokens_around_the_content_are_removed(text: str) -> None:
    made = formats(COMMAND, "auto", "auto")
    tokenizer = made._tokenizer
    assert tokenizer is not None
    options = made.options([5], SCHEMAS, max_calls=None, skip_special_tokens=True)
    assert options is not None
    parser, delta = ResponseParser(options), ResponseDelta()
    detokenizer = tokenizer.detokenizer(
        [5], skip_special_tokens=True, spaces_between_special_tokens=False
    )
    num_chars = 0
    for token_id in tokenizer.encode(text, add_special_tokens=False):
        piece = detokenizer.feed((token_id,))
        num_chars += len(piece)
        parser.add_token(token_id, piece, num_chars)
        parser.feed(piece, num_tokens=1)
        delta.extend(parser.take())
    parser.finish()
    delta.extend(parser.take())
    theirs = parse_response(text, COMMAND, prefix="")
    assert delta.reasoning.strip() == theirs.get("thinking", "")
    if text != "plain":  # which they drop: no marker opens it
        assert delta.content.strip() == theirs.get("content", "")
    assert [(call.name, call.arguments) for call in whole_calls(delta.calls)] == (
        [("f", '{"a": 1}')] if CALLED in text else []
    )


@pytest.mark.parametrize("template", [ERNIE, HARMONY])
@pytest.mark.parametrize(
    ("tools", "reasoning", "flag", "plugin"),
    [("auto", None, "--tool-call-parser", "--tool-parser-plugin"),
     (None, "auto", "--reasoning-parser", "--reasoning-parser-plugin")],
)  # fmt: skip
def test_other_markers_are_one_error_that_says_what_to_pass(
    template: dict[str, Any], tools: str | None, reasoning: str | None, flag: str, plugin: str
) -> None:
    with pytest.raises(ConfigurationError) as error:
        formats(template, tools, reasoning)
    assert str(error.value).startswith(f"{flag} auto: ")
    assert "fields.content" in str(error.value)
    assert f"leave {flag} out, or pass {plugin} FILE" in str(error.value)
    assert "\n" not in str(error.value)
