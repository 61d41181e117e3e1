"""Answers of gpt-oss: messages with headers, which are reasoning, content or calls."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from support.checkpoint_tokenizer import trained_tokenizer
from taco_gateway.text.response.channel_format import HARMONY
from taco_gateway.text.response.marker_tokens import MarkerTokens
from taco_gateway.text.response.response_delta import ResponseDelta, whole_calls
from taco_gateway.text.response.response_formats import ResponseFormats
from taco_gateway.text.response.response_parser import ParserOptions, ResponseParser
from taco_gateway.text.tokenizer.tokenizer import FastTokenizer
from taco_proto.errors import ConfigurationError

MARKERS = [*HARMONY.tokens, *HARMONY.last_ends, "<|constrain|>"]
SCHEMAS = {"f": {"type": "object"}}
ARGUMENTS = '{"a":  1.50, "s": "<|end|> \\" }", "o": {"l": [1, {}], "ü": null}}'
THOUGHT = "<|channel|>analysis<|message|>I see é.<|end|>"
NEXT = "<|start|>assistant"
FINAL = "<|channel|>final<|message|>It is 5.\n"
CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"

# Text, and its reasoning, content and calls.
Parts = tuple[str, str, list[tuple[str | None, str]]]
ANSWERS: dict[str, tuple[str, Parts]] = {
    "final": (FINAL, ("", "It is 5.\n", [])),
    "thought, final": (f"{THOUGHT}{NEXT}{FINAL}", ("I see é.", "It is 5.\n", [])),
    "two thoughts": (
        f"{THOUGHT}{NEXT}<|channel|>analysis<|message|>More.<|end|>{NEXT}{FINAL}",
        ("I see é.\n\nMore.", "It is 5.\n", []),
    ),
    "call": (f"{CALL}{ARGUMENTS}", ("", "", [("f", ARGUMENTS)])),
    "thought, call": (f"{THOUGHT}{NEXT}{CALL}{{}}<|call|>", ("I see é.", "", [("f", "{}")])),
    "recipient first": (
        f"{THOUGHT}{NEXT} to=functions.f<|channel|>commentary json<|message|>{ARGUMENTS}<|call|>",
        ("I see é.", "", [("f", ARGUMENTS)]),
    ),
    "recipient first of all": (
        " to=functions.f<|channel|>commentary <|constrain|>json<|message|>{}",
        ("", "", [("f", "{}")]),
    ),
    "call in the analysis channel": (
        "<|channel|>analysis to=functions.f code<|message|>{}<|call|>",
        ("", "", [("f", "{}")]),
    ),
    "preamble, two calls": (
        f"{THOUGHT}{NEXT}<|channel|>commentary<|message|>I will look.<|end|>{NEXT}{CALL}{{}}"
        f"<|call|>{NEXT}<|channel|>commentary to=functions.g-2<|message|>{ARGUMENTS}",
        ("I see é.", "I will look.", [("f", "{}"), ("g-2", ARGUMENTS)]),
    ),
    "a tool of the model's own": (
        f"<|channel|>analysis to=python code<|message|>1 + 1<|call|>{NEXT}{FINAL}",
        ("1 + 1", "It is 5.\n", []),
    ),
    "two contents": (f"{FINAL}<|end|>{NEXT}{FINAL}", ("", "It is 5.\n\n\nIt is 5.\n", [])),
    "no header": ("  plain < text \n", ("", "  plain < text \n", [])),
    "no header, then one": (f"so {NEXT}{FINAL}", ("", "so It is 5.\n", [])),
    "another channel": ("<|channel|>other<|message|>x", ("", "x", [])),
    "no channel": (f"{NEXT}<|message|>x", ("", "x", [])),
    "thought that is cut": ("<|channel|>analysis<|message|>I see \n", ("I see \n", "", [])),
    "header that is cut": (f"{THOUGHT}{NEXT}<|channel|>fin", ("I see é.", "", [])),
    "arguments that are cut": (f'{CALL}{{"a": ', ("", "", [("f", '{"a": ')])),
    "no arguments": (f"{CALL}<|call|>", ("", "", [("f", "{}")])),
    "arguments that are no object": (
        f"{THOUGHT}{NEXT}<|channel|>commentary to=functions.f code<|message|>print(1)\n<|call|>",
        ("I see é.", "", [("f", "print(1)")]),
    ),
    "a tool's name alone": (
        f"<|channel|>commentary to=f <|constrain|>json<|message|>{{}}<|end|>{NEXT} to=python"
        "<|channel|>commentary code<|message|>1<|call|>",
        ("1", "", [("f", "{}")]),
    ),
    "a message to the user": ("<|channel|>final to=user<|message|>It is 5.", ("", "It is 5.", [])),
    "an empty message": (
        f"<|channel|>commentary<|message|><|end|>{NEXT}{FINAL}",
        ("", "It is 5.\n", []),
    ),
    "messages without ends": (
        f"<|channel|>analysis<|message|>a<|channel|>commentary<|message|>b{CALL}{{}}",
        ("a", "b", [("f", "{}")]),
    ),
    "a header in a header": (f"<|channel|>analysis{NEXT}{FINAL}", ("", "It is 5.\n", [])),
    "text like a recipient": (" to=42 apples", ("", " to=42 apples", [])),
    "text like a recipient and a message": (
        f" to=42 apples{NEXT}{FINAL}",
        ("", " to=42 applesIt is 5.\n", []),
    ),
    "end without a next message": (f"{THOUGHT} more", ("I see é.", " more", [])),
    "long header": (
        f"<|channel|>{'x' * 512} to=functions.f<|message|>y{NEXT}{FINAL}",
        ("", f"<|channel|>{'x' * 512} to=functions.f<|message|>yIt is 5.\n", []),
    ),
    "nothing": ("", ("", "", [])),
}


def tokenizer(special: bool = True) -> FastTokenizer:
    backend: tokenizers.Tokenizer = trained_tokenizer()
    added = [tokenizers.AddedToken(text, special=special, normalized=False) for text in MARKERS]
    (backend.add_special_tokens if special else backend.add_tokens)(added)
    return FastTokenizer(backend)


def parts(delta: ResponseDelta) -> Parts:
    calls: list[tuple[str | None, str]] = [(c.name, c.arguments) for c in whole_calls(delta.calls)]
    return delta.reasoning, delta.content, calls


def of_text(text: str, ends: list[int], **options: Any) -> tuple[Parts, int]:
    """The parts of a text in pieces, in a vocabulary without the tokens."""
    parser = ResponseParser(
        ParserOptions(
            markers=MarkerTokens({}, (), HARMONY.literals()),
            channels=HARMONY,
            **{
                "tools": HARMONY.call,
                "reasoning": HARMONY.reasoning,
                "schemas": SCHEMAS,
                **options,
            },
        )
    )
    delta = ResponseDelta()
    for start, end in pairwise(sorted({0, len(text), *(end % (len(text) + 1) for end in ends)})):
        parser.feed(text[start:end])
        delta.extend(parser.take())
    parser.finish()
    delta.extend(parser.take())
    return parts(delta), parser.num_whole_calls


@pytest.mark.parametrize("name", ANSWERS)
def test_messages_are_reasoning_content_and_calls(name: str) -> None:
    text, expected = ANSWERS[name]
    found, num_whole = of_text(text, list(range(len(text))))
    assert found == expected
    assert num_whole == sum(1 for _, arguments in expected[2] if not arguments.endswith(": "))


@given(st.sampled_from(sorted(ANSWERS)), st.lists(st.integers(0, 10_000), max_size=8))
def test_any_cut_gives_the_same(name: str, ends: list[int]) -> None:
    text, _ = ANSWERS[name]
    assert of_text(text, ends) == of_text(text, [])


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("name", [name for name in ANSWERS if name != "long header"])
def test_only_tokens_are_markers(name: str, special: bool) -> None:
    text, expected = ANSWERS[name]
    model = tokenizer(special)
    formats = ResponseFormats(model, "openai", "openai_gptoss")
    prompt = model.encode(f"<|start|>user<|message|>hi<|end|>{NEXT}", add_special_tokens=False)
    options = formats.options(prompt, SCHEMAS, max_calls=None, skip_special_tokens=True)
    assert options is not None
    parser, detokenizer = ResponseParser(options), model.detokenizer()
    num_chars = num_reasoning = 0
    token_ids = model.encode(text, add_special_tokens=False)
    delta = ResponseDelta()
    for token_id in token_ids:
        piece = detokenizer.feed((token_id,))
        num_chars += len(piece)
        parser.add_token(token_id, piece, num_chars)
        parser.feed(piece, 1)
        delta.extend(parser.take())
    parser.feed(detokenizer.flush())
    parser.finish()
    delta.extend(parser.take())
    # The text of the arguments contains a marker's spelling, which is a token here.
    if ARGUMENTS not in text:
        assert parts(delta) == expected
    num_reasoning = delta.num_reasoning_tokens
    assert (num_reasoning > 0) == bool(expected[0])
    if text.startswith(THOUGHT):
        assert num_reasoning >= len(model.encode(THOUGHT, add_special_tokens=False)) - 1
    if name in ("thought, final", "thought, call"):  # no token of the next header counts
        assert num_reasoning <= len(model.encode(THOUGHT, add_special_tokens=False))


def test_the_spelling_of_a_marker_is_text() -> None:
    model = tokenizer()
    options = ResponseFormats(model, "openai", None).options(
        [], SCHEMAS, max_calls=None, skip_special_tokens=True
    )
    assert options is not None
    parser = ResponseParser(options)
    num_chars = 0
    for marker, text in (("<|channel|>", "final"), ("<|message|>", "say <|end|><|start|> x")):
        parser.add_token(model.added_tokens[marker], "", num_chars)
        num_chars += len(text)
        parser.feed(text)
    parser.finish()
    assert parts(parser.take()) == ("", "say <|end|><|start|> x", [])


def test_calls_are_content_where_none_are_offered() -> None:
    text, _ = ANSWERS["thought, call"]
    assert of_text(text, [], tools=None) == (("I see é.", "{}", []), 0)


@pytest.mark.parametrize("max_calls", [1, 2])
def test_the_last_call_ends_the_answer(max_calls: int) -> None:
    text, expected = ANSWERS["preamble, two calls"]
    (_, _, calls), num_whole = of_text(text, [], max_calls=max_calls)
    assert calls == expected[2][:max_calls]
    assert num_whole == max_calls


@pytest.mark.parametrize(
    ("prompt", "continued", "answer", "expected"),
    [
        (f"{NEXT}<|channel|>analysis<|message|>", None, f"No<|end|>{NEXT}{FINAL}", "No|It is 5.\n"),
        (f"{NEXT}<|channel|>final<|message|>", None, "It is 5.", "|It is 5."),
        (f"{NEXT}<|channel|>final<|message|>It ", "It ", "is 5.", "|is 5."),
        (f"<|message|>hi<|end|>{NEXT}", None, FINAL, "|It is 5.\n"),
    ],
)  # fmt: skip
def test_the_prompt_may_begin_a_message(
    prompt: str, continued: str | None, answer: str, expected: str
) -> None:
    model = tokenizer()
    options = ResponseFormats(model, None, "openai_gptoss").options(
        model.encode(prompt, add_special_tokens=False),
        {},
        max_calls=None,
        skip_special_tokens=False,
        continued=continued,
    )
    assert options is not None
    parser, num_chars = ResponseParser(options), 0
    for token_id in model.encode(answer, add_special_tokens=False):
        text = model.decode([token_id], skip_special_tokens=False)
        num_chars += len(text)
        parser.add_token(token_id, text, num_chars)
        parser.feed(text, 1)
    parser.finish()
    delta = parser.take()
    assert f"{delta.reasoning}|{delta.content}" == expected


def test_formats_that_do_not_fit_are_an_error_at_the_start() -> None:
    pairs: list[tuple[str | None, str | None]] = [("openai", None), (None, "openai_gptoss")]
    for tools, reasoning in (("openai", "qwen3"), ("hermes", "openai_gptoss")):
        with pytest.raises(ConfigurationError, match="are for the same models: give both"):
            ResponseFormats(tokenizer(), tools, reasoning)
    without = FastTokenizer(trained_tokenizer())
    for tool_parser, reasoning_parser in pairs:
        with pytest.raises(ConfigurationError, match=r"has no token <\|channel\|>, <\|start\|>"):
            ResponseFormats(without, tool_parser, reasoning_parser)


def test_one_flag_is_enough_for_reasoning() -> None:
    assert ResponseFormats(tokenizer(), "openai", None).parses_tools
    assert not ResponseFormats(tokenizer(), None, "openai_gptoss").parses_tools
    for tools, reasoning in (("openai", None), (None, "openai_gptoss")):
        options = ResponseFormats(tokenizer(), tools, reasoning).options(
            [], {}, max_calls=None, skip_special_tokens=True
        )
        assert options is not None
        assert options.reasoning is not None
        assert options.tools is None


def test_channels_are_read_without_flags() -> None:
    options = ResponseFormats(tokenizer(), None, None).options(
        [], SCHEMAS, max_calls=None, skip_special_tokens=True
    )
    assert options is not None
    assert options.channels is HARMONY
    assert options.tools is None
    without = FastTokenizer(trained_tokenizer())
    assert (
        ResponseFormats(without, None, None).options(
            [], SCHEMAS, max_calls=None, skip_special_tokens=True
        )
        is None
    )


def test_arguments_are_json() -> None:
    assert json.loads(ARGUMENTS)
