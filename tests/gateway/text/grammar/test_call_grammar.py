"""Random answers that follow a tool grammar parse to valid calls, for each built-in format."""

import json
import re
from typing import Any

import jsonschema
import numpy as np
import pytest

from support.grammar_walks import Vocabulary
from taco_gateway.text.grammar.answer_rules import (
    CallableTool,
    CallRules,
    Enforcement,
    ReasoningRules,
)
from taco_gateway.text.response.built_in import REASONING_FORMATS, TOOL_FORMATS
from taco_gateway.text.response.formats import NamedCall, TaggedCall, ToolFormat
from taco_gateway.text.response.marker_tokens import MarkerTokens
from taco_gateway.text.response.response_delta import ResponseDelta, whole_calls
from taco_gateway.text.response.response_parser import ParserOptions, ResponseParser

SCHEMAS: dict[str, Any] = {
    "get-node": {
        "type": "object",
        "properties": {
            "tree": {"$ref": "#/$defs/node"},
            "kind": {"enum": ["leaf", "</tool_call>", "a\nb", 'x"y']},
            "name": {"type": "string", "minLength": 1, "maxLength": 6},
        },
        "required": ["tree", "name"],
        "additionalProperties": False,
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "key": {"type": "integer", "minimum": -99, "maximum": 99},
                    "next": {"$ref": "#/$defs/node"},
                },
                "required": ["key"],
                "additionalProperties": False,
            }
        },
    },
    "set": {
        "type": "object",
        "properties": {
            "flag": {"type": "boolean"},
            "code": {"type": "string", "pattern": "^[a-c]{2,4}$"},
            "maybe": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
            "many": {"type": "array", "items": {"enum": [1, 2, "ü"]}, "maxItems": 2},
        },
        "required": ["code"],
        "additionalProperties": False,
    },
    "nothing": {"type": "object", "properties": {}, "additionalProperties": False},
}
# Forms that a response template may describe, beside the built-in formats.
FORMATS = {
    **TOOL_FORMATS,
    "keys": ToolFormat(
        opens=("<tool_call>",),
        tagged_call=TaggedCall(
            name_opens="",
            name_closes="\n",
            key_opens="<arg_key>",
            key_closes="</arg_key>\n<arg_value>",
            value_closes="</arg_value>",
            call_closes="</tool_call>",
            trims_values=True,
            guesses_types=True,
        ),
    ),
    "name first": ToolFormat(
        opens=("<call>",), closes=("</call>",), named_call=NamedCall(name_ends=("\n",))
    ),
}
MARKER = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]")
Call = tuple[str, str]


def markers_of(*formats: Any) -> list[str]:
    """The markers that are one token in the models that use the formats."""
    texts = [text for form in formats for text in literals(form)]
    return list(dict.fromkeys(marker for text in texts for marker in MARKER.findall(text)))


def literals(form: Any) -> tuple[str, ...]:
    return form.literals() if hasattr(form, "literals") else (*form.opens, *form.closes)


def tools(enforcement: Enforcement, schemas: dict[str, Any] = SCHEMAS) -> tuple[CallableTool, ...]:
    return tuple(
        CallableTool(name, schema, f"tools[{index}].function.parameters", enforcement)
        for index, (name, schema) in enumerate(schemas.items())
    )


def parsed(vocabulary: Vocabulary, options: ParserOptions, token_ids: list[int]) -> ResponseDelta:
    parser, detokenizer = ResponseParser(options), vocabulary.tokenizer.detokenizer()
    num_chars = 0
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


def check(calls: list[Any], schemas: dict[str, Any] = SCHEMAS) -> list[Call]:
    for call in calls:
        jsonschema.validate(json.loads(call.arguments), schemas[call.name])
    return [(call.name, call.arguments) for call in calls]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "tokens", "special"])
@pytest.mark.parametrize("name", FORMATS)
def test_required_calls_are_valid(name: str, kind: str) -> None:
    form, reasoning = FORMATS[name], REASONING_FORMATS["qwen3"]
    found = markers_of(form, reasoning)
    vocabulary = Vocabulary.of(() if kind == "text" else found, found if kind == "special" else ())
    literal = (*literals(form), *literals(reasoning))
    options = ParserOptions(
        markers=MarkerTokens(
            vocabulary.tokenizer.added_tokens, vocabulary.tokenizer.special_ids, literal
        ),
        tools=form,
        reasoning=reasoning,
        schemas=SCHEMAS,
    )
    random = np.random.default_rng(1)
    seen: set[str] = set()
    for enforcement, has_one_call in ((Enforcement.STRICT, False), (Enforcement.LENIENT, True)):
        calls = CallRules(
            format=form, tools=tools(enforcement), is_required=True, has_one_call=has_one_call
        )
        rules = vocabulary.rules(
            found,
            calls=calls,
            reasoning=None if kind == "text" else ReasoningRules(format=reasoning),
        )
        matcher = vocabulary.matcher(rules)
        for _ in range(8):
            text = vocabulary.walk(matcher.deep_copy(), random)
            answer = parsed(vocabulary, options, text)
            made = check(whole_calls(answer.calls))
            assert made, (
                vocabulary.tokenizer.decode(text, skip_special_tokens=False)[-300:],
                text[-20:],
            )
            # A character that the reasoning leaves incomplete may follow its end.
            assert not answer.content.strip("\ufffd")
            assert len(made) == 1 or not has_one_call
            seen |= {called for called, _ in made}
    assert seen == set(SCHEMAS)


@pytest.mark.parametrize("kind", ["text", "tokens", "special"])
@pytest.mark.parametrize("name", FORMATS)
def test_calls_behind_free_text_are_valid(name: str, kind: str) -> None:
    form = FORMATS[name]
    found = markers_of(form)
    vocabulary = Vocabulary.of(() if kind == "text" else found, found if kind == "special" else ())
    tokenizer = vocabulary.tokenizer
    options = ParserOptions(
        markers=MarkerTokens(tokenizer.added_tokens, tokenizer.special_ids, literals(form)),
        tools=form,
        schemas=SCHEMAS,
    )
    calls = CallRules(format=form, tools=tools(Enforcement.STRICT), has_one_call=True)
    matcher = vocabulary.matcher(vocabulary.rules(found, calls=calls))
    free = set(vocabulary.allowed(matcher))
    texts = {token for token in range(tokenizer.vocab_size) if is_text(tokenizer, token)}
    assert vocabulary.end_ids <= free
    assert texts <= free
    random = np.random.default_rng(2)
    for marker in form.opens:
        start = tokenizer.encode("so < so ", add_special_tokens=False)
        start += tokenizer.encode(marker, add_special_tokens=False)
        for _ in range(3):
            answer = parsed(
                vocabulary, options, vocabulary.walk(matcher.deep_copy(), random, start)
            )
            assert len(check(whole_calls(answer.calls))) == 1
            assert answer.content == "so < so"


def is_text(tokenizer: Any, token: int) -> bool:
    """Whether a token has text with which no call begins."""
    text = tokenizer.decode([token], skip_special_tokens=True)
    return bool(text.strip()) and "\ufffd" not in text and not text.strip().startswith(("{", "["))
