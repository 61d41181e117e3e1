"""Random answers of gpt-oss that follow a grammar keep the rules of the request."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from typing import Any

import jsonschema
import numpy as np
import pytest
import tokenizers
from llguidance import LLTokenizer

from support.checkpoint_tokenizer import EOS_TOKEN, trained_tokenizer
from support.grammar_walks import Vocabulary
from taco_gateway.text.grammar.answer_rules import (
    AnswerRules,
    AnswerWish,
    CallableTool,
    CallRules,
    ChannelRules,
    Enforcement,
    ReasoningRules,
)
from taco_gateway.text.response.channel_format import HARMONY
from taco_gateway.text.response.marker_tokens import MarkerTokens
from taco_gateway.text.response.response_delta import ResponseDelta, whole_calls
from taco_gateway.text.response.response_formats import ResponseFormats
from taco_gateway.text.response.response_parser import ParserOptions, ResponseParser
from taco_gateway.text.tokenizer.tokenizer import FastTokenizer

MARKERS = [*HARMONY.tokens, *HARMONY.last_ends, "<|constrain|>"]
SCHEMAS: dict[str, Any] = {
    "get-node": {
        "type": "object",
        "properties": {"key": {"type": "integer", "minimum": -9, "maximum": 9}},
        "required": ["key"],
        "additionalProperties": False,
    },
    "nothing": {"type": "object", "properties": {}, "additionalProperties": False},
}
CONTENT = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
NEXT = "<|start|>assistant"


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    """One whose `<|end|>` ends no answer, as in gpt-oss."""
    backend: tokenizers.Tokenizer = trained_tokenizer()
    backend.add_special_tokens(MARKERS)
    tokenizer = FastTokenizer(backend)
    ends = [tokenizer.added_tokens[EOS_TOKEN]]
    return Vocabulary(tokenizer, LLTokenizer(backend.to_str(), eos_token=ends), frozenset(ends))


def rules(vocabulary: Vocabulary, *, in_content: bool = False, **parts: object) -> AnswerRules:
    channels = ChannelRules(format=HARMONY, in_content=in_content)
    return vocabulary.rules(MARKERS, channels=channels, **parts)


def reasoning(**options: Any) -> ReasoningRules:
    return ReasoningRules(format=HARMONY.reasoning, **options)


def calls(**options: Any) -> CallRules:
    tools = tuple(
        CallableTool(name, schema, f"tools[{index}].function.parameters", Enforcement.STRICT)
        for index, (name, schema) in enumerate(SCHEMAS.items())
    )
    return CallRules(format=HARMONY.call, tools=tools, **options)


def parsed(vocabulary: Vocabulary, token_ids: list[int], **options: Any) -> ResponseDelta:
    tokenizer = vocabulary.tokenizer
    markers = MarkerTokens(tokenizer.added_tokens, tokenizer.special_ids, HARMONY.literals())
    parts = {"tools": HARMONY.call, "reasoning": HARMONY.reasoning, **options}
    parser = ResponseParser(ParserOptions(markers=markers, channels=HARMONY, **parts))
    detokenizer, num_chars = tokenizer.detokenizer(), 0
    for token_id in token_ids:
        text = detokenizer.feed((token_id,))
        num_chars += len(text)
        parser.add_token(token_id, text, num_chars)
        parser.feed(text, 1)
    parser.feed(detokenizer.flush())
    parser.finish()
    delta = parser.take()
    assert parser.num_whole_calls == len(whole_calls(delta.calls))
    return delta


def encoded(vocabulary: Vocabulary, text: str) -> list[int]:
    return vocabulary.tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("has_begun", [False, True])
@pytest.mark.parametrize("limit", [None, 0, 3])
def test_required_calls_are_valid(
    vocabulary: Vocabulary, has_begun: bool, limit: int | None
) -> None:
    wanted = rules(
        vocabulary,
        calls=calls(is_required=True),
        reasoning=reasoning(has_begun=has_begun, max_tokens=limit),
    )
    matcher, random = vocabulary.matcher(wanted), np.random.default_rng(1)
    seen: set[str] = set()
    with_reasoning = 0
    for _ in range(12):
        walk = vocabulary.walk(matcher.deep_copy(), random)
        answer = parsed(vocabulary, walk, starts_inside_reasoning=has_begun)
        (call,) = whole_calls(answer.calls)
        assert call.name is not None
        jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
        assert not answer.content
        seen.add(call.name)
        with_reasoning += bool(answer.reasoning)
        end, message = (vocabulary.tokenizer.added_tokens[t] for t in ("<|end|>", "<|message|>"))
        if limit is not None and end in walk:
            begin = 0 if has_begun else walk.index(message) + 1
            assert walk.index(end) <= begin + limit
    assert seen == set(SCHEMAS)
    assert bool(with_reasoning) == (limit != 0)


@pytest.mark.parametrize("has_tools", [False, True])
def test_a_constraint_holds_for_the_content(vocabulary: Vocabulary, has_tools: bool) -> None:
    wanted = rules(vocabulary, calls=calls() if has_tools else None, reasoning=reasoning())
    matcher = vocabulary.matcher(wanted, kind="json", value=json.dumps(CONTENT), options={})
    random = np.random.default_rng(2)
    contents, num_calls = set(), 0
    for _ in range(200):
        answer = parsed(vocabulary, vocabulary.walk(matcher.deep_copy(), random))
        made = whole_calls(answer.calls)
        num_calls += len(made)
        if made:
            assert not answer.content
        else:
            jsonschema.validate(json.loads(answer.content), CONTENT)
            contents.add(json.loads(answer.content)["a"])
    assert contents == {1, 2}
    assert bool(num_calls) == has_tools


def test_strict_tools_leave_content_free(vocabulary: Vocabulary) -> None:
    matcher = vocabulary.matcher(rules(vocabulary, calls=calls(), reasoning=reasoning()))
    thought = f"{HARMONY.reasoning_header}so<|end|>{NEXT}"
    content = encoded(vocabulary, f"{thought}{HARMONY.content_headers[0]}It is <x>")
    free = matcher.deep_copy()
    for token in content:
        assert free.consume_token(token), free.get_error()
    assert vocabulary.end_ids <= set(vocabulary.allowed(free))
    random = np.random.default_rng(3)
    befores = ("", thought, f"{thought}{HARMONY.preamble_header}I look.<|end|>{NEXT}")
    for before, form in product(befores, HARMONY.calls):
        start = encoded(vocabulary, f"{before}{form.opens[0]}")
        walk = vocabulary.walk(matcher.deep_copy(), random, start)
        answer = parsed(vocabulary, walk)
        (call,) = whole_calls(answer.calls)
        assert call.name is not None
        jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
        assert answer.content == ("I look." if "I look." in before else "")


def test_a_continued_message_is_content(vocabulary: Vocabulary) -> None:
    matcher = vocabulary.matcher(
        rules(vocabulary, in_content=True), kind="json", value=json.dumps(CONTENT), options={}
    )
    walk = vocabulary.walk(matcher, np.random.default_rng(4))
    answer = parsed(vocabulary, walk, starts_inside_content=True)
    jsonschema.validate(json.loads(answer.content), CONTENT)
    matcher = vocabulary.matcher(rules(vocabulary, in_content=True, calls=calls(is_required=True)))
    walk = vocabulary.walk(matcher, np.random.default_rng(5))
    answer = parsed(vocabulary, walk, starts_inside_content=True)
    assert len(whole_calls(answer.calls)) == 1


def test_a_limit_on_the_reasoning_leaves_calls_free(vocabulary: Vocabulary) -> None:
    """With tools that are not strict: every spelling of a call that the parser reads."""
    formats = ResponseFormats(vocabulary.tokenizer, "openai", None)
    (tool, *_) = calls().tools
    wish = AnswerWish(tools=(replace(tool, enforcement=Enforcement.NONE),), max_reasoning_tokens=9)
    found = formats.rules([], wish, vocabulary.end_ids)
    assert found is not None
    matcher = vocabulary.matcher(found)
    thought = f"{HARMONY.reasoning_header}so<|end|>{NEXT}"
    for header in (
        "<|channel|>commentary to=functions.get-node <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.get-node<|message|>",
        " to=functions.get-node<|channel|>commentary json<|message|>",
        f"{HARMONY.preamble_header}I look.<|end|>{NEXT} to=functions.get-node<|channel|>commentary"
        "<|message|>",
    ):
        for before in ("", thought):
            text = encoded(vocabulary, f'{before}{header}{{"key": 1}}')
            assert matcher.deep_copy().validate_tokens(text) == len(text), (before, header)
    assert formats.rules([], AnswerWish(tools=wish.tools), vocabulary.end_ids) is None
