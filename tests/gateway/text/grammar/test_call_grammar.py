"""Random answers that follow a tool grammar parse to valid calls, for each built-in format."""

import json
import re
from typing import Any

import jsonschema
import numpy as np
import pytest

from support.grammar_walks import Vocabulary
from support.response_samples import SAMPLES
from support.response_samples import SCHEMAS as SAMPLE_SCHEMAS
from taco_gateway.text.grammar.answer_rules import (
    CallableTool,
    CallRules,
    Enforcement,
    ReasoningRules,
)
from taco_gateway.text.grammar.call_grammar import CallGrammar
from taco_gateway.text.grammar.canonical import ConstraintError
from taco_gateway.text.grammar.lark_builder import LarkBuilder
from taco_gateway.text.response.built_in import REASONING_FORMATS, TOOL_FORMATS
from taco_gateway.text.response.formats import (
    NamedCall,
    ReasoningFormat,
    TaggedCall,
    ToolFormat,
)
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
            if not made and ends_within_character(vocabulary, reasoning, text):
                continue
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


def ends_within_character(
    vocabulary: Vocabulary, reasoning: ReasoningFormat, tokens: list[int]
) -> bool:
    """Whether a special token ends the reasoning inside of a character.

    It has no text, so the character's replacement is read behind it, and behind the marker that
    opens the calls if that is a special token, too.
    """
    tokenizer = vocabulary.tokenizer
    closes = tokenizer.added_tokens.get(*reasoning.closes)
    if closes not in tokens or closes not in tokenizer.special_ids:
        return False
    text = tokenizer.decode(tokens[: tokens.index(closes)], skip_special_tokens=True)
    return text.endswith("\ufffd")


# The grammar writes the literals of Python as JSON, which models do not.
TEMPLATE_TEXTS = [
    name for name, sample in SAMPLES.items() if not TOOL_FORMATS[sample.tools].python_call
]


@pytest.mark.parametrize("kind", ["text", "special"])
@pytest.mark.parametrize("has_one_call", [False, True])
@pytest.mark.parametrize("name", TEMPLATE_TEXTS)
def test_the_text_of_the_chat_template_is_accepted(
    name: str, has_one_call: bool, kind: str
) -> None:
    form = TOOL_FORMATS[SAMPLES[name].tools]
    found = markers_of(form)
    vocabulary = Vocabulary.of(() if kind == "text" else found, found)
    calls = CallRules(
        format=form,
        tools=tools(Enforcement.LENIENT, SAMPLE_SCHEMAS),
        is_required=True,
        has_one_call=has_one_call,
    )
    matcher = vocabulary.matcher(vocabulary.rules(found, calls=calls))
    for count in range(1, SAMPLES[name].max_calls + 1):
        text = SAMPLES[name].write(count).lstrip()
        tokens = [
            *vocabulary.tokenizer.encode(text, add_special_tokens=False),
            min(vocabulary.end_ids),
        ]
        num_taken = matcher.deep_copy().validate_tokens(tokens)
        assert (num_taken == len(tokens)) is (count == 1 or not has_one_call), text


def test_calls_end_the_reasoning_of_kimi() -> None:
    form, reasoning = TOOL_FORMATS["kimi_k2"], REASONING_FORMATS["kimi_k2"]
    found = markers_of(form, reasoning)
    random = np.random.default_rng(3)
    for special in ((), found):
        vocabulary = Vocabulary.of(found, special)
        added = vocabulary.tokenizer.added_tokens
        options = ParserOptions(
            markers=MarkerTokens(
                added, vocabulary.tokenizer.special_ids, (*form.literals(), *reasoning.literals())
            ),
            tools=form,
            reasoning=reasoning,
            schemas=SCHEMAS,
            starts_inside_reasoning=True,
        )
        start = vocabulary.tokenizer.encode("so ", add_special_tokens=False)
        opens = added["<|tool_calls_section_begin|>"]
        for is_required in (True, False):
            calls = CallRules(format=form, tools=tools(Enforcement.STRICT), is_required=is_required)
            rules = vocabulary.rules(
                found, calls=calls, reasoning=ReasoningRules(format=reasoning, has_begun=True)
            )
            matcher = vocabulary.matcher(rules)
            for _ in range(3):
                text = vocabulary.walk(matcher.deep_copy(), random, [*start, opens])
                answer = parsed(vocabulary, options, text)
                assert (answer.reasoning, answer.content) == ("so", "")
                assert check(whole_calls(answer.calls))
                assert all(call.id.startswith("functions.") for call in answer.calls if call.id)


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("glm45", "a\nb"),
        ("glm45", "a<arg_key>b"),
        ("glm47", "a</tool_call>b"),
        ("glm47", " a"),
        ("minimax_m2", 'a">b'),
        ("kimi_k2", "a<|tool_call_argument_begin|>b"),
    ],
)
def test_a_name_that_the_format_cannot_write(form: str, name: str) -> None:
    tool = CallableTool(name, {}, "tools[0].function.parameters", Enforcement.LENIENT)
    rules = CallRules(format=TOOL_FORMATS[form], tools=(tool,))
    with pytest.raises(ConstraintError, match="cannot write the name"):
        CallGrammar(LarkBuilder({}), rules)


def is_text(tokenizer: Any, token: int) -> bool:
    """Whether a token has text with which no call begins."""
    text = tokenizer.decode([token], skip_special_tokens=True)
    return bool(text.strip()) and "\ufffd" not in text and not text.strip().startswith(("{", "["))
