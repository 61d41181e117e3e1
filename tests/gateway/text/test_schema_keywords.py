"""Each keyword of JSON schemas is enforced or rejected, as docs/structured-output.md says."""

import copy
import itertools
import json
import re
from collections.abc import Iterator
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
LOWER = ("minimum", "exclusiveMinimum")
UPPER = ("maximum", "exclusiveMaximum")
# Pairs of bounds, with numbers at them, between them and beside them.
BOUNDS: list[tuple[float, float, tuple[float, ...]]] = [
    (0, 0.001, (-0.001, 0, 0.0005, 0.001, 0.0011, 1)),
    (0, 0.5, (0, 0.0001, 0.25, 0.5, 0.51)),
    (0, 1, (0, 0.5, 0.99, 1, 1.01)),
    (1, 1.5, (0.9, 1, 1.01, 1.49, 1.5, 1.6)),
    (-1.25, -1, (-1.26, -1.25, -1.1, -1, -0.9)),
    (-1, -0.5, (-1.1, -1, -0.75, -0.5, -0.4)),
    (-0.5, 0, (-0.6, -0.5, -0.1, 0, 0.1)),
    (-0.5, 0.5, (-0.5, 0, 0.4, 0.5)),
    (99, 99.5, (98, 99, 99.2, 99.5, 100)),
    (2**33, 2**33 + 0.5, (2**33, 2**33 + 0.125, 2**33 + 0.5, 2**33 + 0.75)),
    (-7, 12, (-8, -7, 0, 11, 12, 13)),
]
# Schemas with a number that llguidance would change, the path to it, and its keyword.
CHANGED_NUMBERS: list[tuple[dict[str, Any], str, str]] = [
    ({"const": 2**53 + 1}, "/", "const"),
    ({"const": -(2**53) - 1}, "/", "const"),
    ({"const": -(2**63)}, "/", "const"),
    ({"const": {"a": [{"b": 2**53 + 1}]}}, "/", "const"),
    ({"type": "integer", "enum": [1, 2**64]}, "/", "enum"),
    ({"properties": {"a": {"enum": ["x", 2**60 + 1]}}}, "/properties/a", "enum"),
    ({"$ref": "#/parts/a~1b", "parts": {"a/b": {"const": 2**53 + 1}}}, "/parts/a~1b", "const"),
    ({"multipleOf": 2**53 + 1}, "/", "multipleOf"),
    ({"type": "integer", "minimum": 2**53 + 1, "maximum": 2**54}, "/", "minimum"),
    ({"type": "integer", "minimum": 10**17, "maximum": 10**17 + 5}, "/", "maximum"),
    ({"type": "integer", "maximum": 2**64 - 1}, "/", "maximum"),
    ({"type": "integer", "maximum": 1e20}, "/", "maximum"),
    ({"type": "number", "minimum": 0, "maximum": 1e20}, "/", "maximum"),
    ({"type": "number", "maximum": 2**63 - 1}, "/", "maximum"),
    ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, "/", "minimum"),
    ({"type": "integer", "exclusiveMinimum": 2**53}, "/", "exclusiveMinimum"),
    ({"type": "integer", "exclusiveMaximum": -(2**53)}, "/", "exclusiveMaximum"),
    ({"type": "integer", "minimum": 2**53 + 2, "exclusiveMinimum": True}, "/", "exclusiveMinimum"),
    ({"type": "integer", "minimum": 10**18}, "/", "minimum"),
    ({"type": "number", "maximum": -(10**18)}, "/", "maximum"),
]
# Large numbers that are enforced: a schema, numbers that are valid, and others.
LARGE_NUMBERS: list[tuple[dict[str, Any], list[int], list[int]]] = [
    ({"const": 2**60}, [2**60], [2**60 + 1, 2**60 - 1]),
    ({"enum": [2**53, -(2**53)]}, [2**53, -(2**53)], [2**53 + 1, 2**53 - 1]),
    ({"type": "integer", "maximum": 2**63 - 1}, [2**63 - 1, -(2**70)], [2**63]),
    ({"type": ["integer", "null"], "minimum": 1, "maximum": 2**63 - 1}, [2**63 - 1], [0, 2**63]),
    ({"type": "integer", "exclusiveMaximum": 2**53}, [2**53 - 1], [2**53]),
    ({"type": "integer", "exclusiveMinimum": -(2**53)}, [1 - 2**53], [-(2**53)]),
    ({"type": "integer", "minimum": 10**18, "maximum": 10**18 + 2**20},
     [10**18, 10**18 + 1, 10**18 + 2**20], [10**18 - 1, 10**18 + 2**20 + 1]),
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_ByteTokens(0)), slices=[])


def grammar_of(schema: Any) -> str:
    text = canonical_grammar("json", schema, {})
    check_grammar("json", schema, text)
    return text


def accepts(tokenizer: LLTokenizer, grammar: str, instance: Any) -> bool:
    return accepts_text(tokenizer, grammar, json.dumps(instance, ensure_ascii=False).encode())


def accepts_text(tokenizer: LLTokenizer, grammar: str, text: bytes) -> bool:
    matcher = LLMatcher(tokenizer, grammar, log_level=0)
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


def schemas_with(lower: dict[str, Any], upper: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Schemas of the numbers between two bounds, which are in one schema or in several."""
    yield {"type": "number", **lower, **upper}
    yield {**lower, **upper}
    yield {"type": ["number", "null"], **lower, **upper}
    yield {"allOf": [{"type": "number", **lower}, upper]}
    yield {"type": "number", "anyOf": [lower], **upper}
    yield {"type": "number", **lower, "$ref": "#/parts/a", "parts": {"a": upper}}


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize(("low", "high"), list(itertools.product(LOWER, UPPER)))
def test_pairs_of_bounds(
    bounds: tuple[float, float, tuple[float, ...]], low: str, high: str, tokenizer: LLTokenizer
) -> None:
    lower, upper, numbers = bounds
    for schema in schemas_with({low: lower}, {high: upper}):
        judge = jsonschema.Draft202012Validator(copy.deepcopy(schema))
        grammar = grammar_of(schema)
        for number in numbers:
            assert accepts(tokenizer, grammar, number) == judge.is_valid(number), (schema, number)


@pytest.mark.parametrize("low", LOWER)
def test_negative_zero_is_zero(low: str, tokenizer: LLTokenizer) -> None:
    grammar = grammar_of({"type": "number", low: -0.5, "exclusiveMaximum": 0})
    assert accepts_text(tokenizer, grammar, b"-0.01")
    assert not accepts_text(tokenizer, grammar, b"-0")


@pytest.mark.parametrize("bounds", [(0, 0.5), (2, 2.5), (0, 7)])
def test_bounds_with_switches_of_draft_4(
    bounds: tuple[float, float], tokenizer: LLTokenizer
) -> None:
    lower, upper = bounds
    switched = {"type": "number", "exclusiveMinimum": True, "anyOf": [{}], "minimum": lower}
    grammar = grammar_of({**switched, "maximum": upper, "exclusiveMaximum": False})
    assert not accepts(tokenizer, grammar, lower)
    assert accepts(tokenizer, grammar, lower + 0.25)
    assert accepts(tokenizer, grammar, upper)


@pytest.mark.parametrize(("schema", "path", "keyword"), CHANGED_NUMBERS)
def test_a_number_that_would_be_changed_is_rejected_with_its_path(
    schema: dict[str, Any], path: str, keyword: str
) -> None:
    with pytest.raises(ConstraintError, match=f"^{path}: keyword '{keyword}': "):
        grammar_of(schema)
    before = copy.deepcopy(schema)
    lenient = canonical_grammar("json", schema, {"lenient": True})
    assert f'"{keyword}":' not in lenient  # what cannot be enforced is ignored
    assert schema == before


@pytest.mark.parametrize(("schema", "valid", "invalid"), LARGE_NUMBERS)
def test_large_numbers_are_exact(
    schema: dict[str, Any], valid: list[int], invalid: list[int], tokenizer: LLTokenizer
) -> None:
    grammar = grammar_of(schema)
    assert all(accepts(tokenizer, grammar, number) for number in valid)
    assert not any(accepts(tokenizer, grammar, number) for number in invalid)


def test_what_constrains_nothing_is_accepted(tokenizer: LLTokenizer) -> None:
    schema = {"type": "array", "items": {"type": "array", "uniqueItems": False}}
    assert accepts(tokenizer, grammar_of(schema), [[1, 1]])


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
