"""Each keyword of JSON schemas is enforced or rejected, as docs/structured-output.md says."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from taco_gateway.text.grammar.canonical import ConstraintError, canonical_grammar
from taco_gateway.text.grammar.validation import _ByteTokens, check_grammar

PAGE = Path(__file__).parents[3] / "docs" / "structured-output.md"

# A schema with the keyword, instances of it, and others.
ENFORCED: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "type": ({"type": ["string", "null"]}, ["a", None], [1, True, {}]),
    "enum": ({"enum": [1, "a", None]}, [1, "a", None], [2, "b"]),
    "const": ({"const": {"a": [1]}}, [{"a": [1]}], [{"a": [2]}, {}]),
    "anyOf": ({"anyOf": [{"type": "string"}, {"const": 1}]}, ["a", 1], [2, None]),
    "oneOf": ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, ["a", 1], [None]),
    "allOf": ({"allOf": [{"minimum": 2}, {"maximum": 5, "type": "integer"}]}, [2, 5], [1, 6]),
    "$ref": ({"$defs": {"x": {"type": "string"}}, "$ref": "#/$defs/x"}, ["a"], [1]),
    "properties": (
        {"type": "object", "properties": {"a": {"type": "string"}}}, [{"a": "x"}, {}], [{"a": 1}],
    ),
    "required": (
        {"type": "object", "properties": {"a": {}}, "required": ["a"]}, [{"a": 1}], [{}],
    ),
    "additionalProperties": (
        {"type": "object", "additionalProperties": {"type": "string"}}, [{"b": "x"}], [{"b": 1}],
    ),
    "patternProperties": (
        {
            "type": "object",
            "patternProperties": {"^a": {"type": "string"}},
            "additionalProperties": False,
        },
        [{"ab": "x"}],
        [{"ab": 1}, {"b": "x"}],
    ),
    "minProperties": ({"type": "object", "minProperties": 1}, [{"a": 1}], [{}]),
    "maxProperties": ({"type": "object", "maxProperties": 1}, [{"a": 1}], [{"a": 1, "b": 2}]),
    "items": ({"type": "array", "items": {"type": "string"}}, [["a"], []], [[1]]),
    "prefixItems": (
        {"type": "array", "prefixItems": [{"const": 1}], "minItems": 1}, [[1], [1, 2]], [[2]],
    ),
    "minItems": ({"type": "array", "minItems": 1}, [[1]], [[]]),
    "maxItems": ({"type": "array", "maxItems": 1}, [[1]], [[1, 2]]),
    "minLength": ({"type": "string", "minLength": 2}, ["ab", "üü"], ["a", "ü"]),
    "maxLength": ({"type": "string", "maxLength": 2}, ["ab", "日本"], ["abc"]),
    "pattern": ({"type": "string", "pattern": "b+$"}, ["ab", "bb"], ["a", "ba"]),
    "format": ({"type": "string", "format": "date"}, ["2024-02-11"], ["2024-13-11", "x"]),
    "minimum": ({"type": "integer", "minimum": 7}, [7, 10], [6, -9]),
    "maximum": ({"type": "integer", "maximum": 30}, [30, -4], [31, 300]),
    "exclusiveMinimum": ({"type": "number", "exclusiveMinimum": 0.5}, [0.6, 3], [0.5, 0]),
    "exclusiveMaximum": ({"type": "number", "exclusiveMaximum": 9}, [8.9, 0], [9, 10]),
    "multipleOf": ({"type": "integer", "multipleOf": 5}, [0, 15], [3, 12]),
}  # fmt: skip
REJECTED: dict[str, Any] = {
    "not": {"type": "string"},
    "if": {"type": "string"},
    "then": {"type": "string"},
    "else": {"type": "string"},
    "dependentRequired": {"a": ["b"]},
    "dependentSchemas": {"a": {}},
    "propertyNames": {"pattern": "a"},
    "unevaluatedProperties": False,
    "unevaluatedItems": False,
    "uniqueItems": True,
    "contains": {"type": "string"},
    "$dynamicRef": "#x",
}
FORMATS = ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri",
           "uuid")  # fmt: skip
UNKNOWN_FORMATS = ("iri", "uri-reference", "idn-email", "json-pointer", "regex", "mine")


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_ByteTokens(0)), slices=[])


def grammar_of(schema: Any) -> str:
    text = canonical_grammar("json", schema, {})
    check_grammar("json", schema, text)
    return text


def accepts(tokenizer: LLTokenizer, grammar: str, instance: Any) -> bool:
    matcher = LLMatcher(tokenizer, grammar, log_level=0)
    text = json.dumps(instance, ensure_ascii=False).encode()
    return matcher.validate_tokens(list(text)) == len(text) and (
        matcher.consume_tokens(list(text)) and matcher.is_accepting()
    )


@pytest.mark.parametrize("keyword", ENFORCED)
def test_a_keyword_is_enforced(keyword: str, tokenizer: LLTokenizer) -> None:
    schema, valid, invalid = ENFORCED[keyword]
    assert keyword in schema
    grammar = grammar_of(schema)
    judge = jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    for instance in valid:
        assert judge.is_valid(instance)
        assert accepts(tokenizer, grammar, instance), instance
    for instance in invalid:
        assert not judge.is_valid(instance)
        assert not accepts(tokenizer, grammar, instance), instance


@pytest.mark.parametrize("keyword", REJECTED)
def test_a_keyword_is_rejected_with_its_path(keyword: str) -> None:
    schema = {"type": "object", "properties": {"a~/b": {keyword: REJECTED[keyword]}}}
    place = re.escape(f"/properties/a~0~1b: keyword '{keyword}'")
    with pytest.raises(ConstraintError, match=f"^{place}"):
        grammar_of(schema)


def test_alternatives_that_overlap_are_rejected_with_their_path() -> None:
    overlapping = {"oneOf": [{"type": "number"}, {"type": "integer"}]}
    with pytest.raises(ConstraintError, match=r"^/items: keyword 'oneOf': .* use anyOf"):
        grammar_of({"type": "array", "items": overlapping})
    tagged = [
        {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]}
        for kind in ("cat", "dog")
    ]
    grammar_of({"oneOf": tagged, "discriminator": {"propertyName": "kind"}})


def test_known_formats_are_accepted_and_others_rejected() -> None:
    for name in FORMATS:
        grammar_of({"type": "string", "format": name})
    for name in UNKNOWN_FORMATS:
        with pytest.raises(ConstraintError, match=r"^/: keyword 'format'"):
            grammar_of({"type": "string", "format": name})


def test_the_page_lists_the_keywords() -> None:
    rows = dict(re.findall(r"^\| (.+?) \| (.+) \|$", PAGE.read_text(), re.MULTILINE))
    listed = {
        word
        for kind in ("any value", "objects", "arrays", "strings", "numbers")
        for word in re.findall(r"`([^`]+)`", rows[kind])
    }
    assert listed == set(ENFORCED)
    assert set(re.findall(r"`([^`]+)`", rows["formats of strings"])) == set(FORMATS)
    assert set(re.findall(r"`([^`]+)`", rows["rejected"])) == set(REJECTED)
