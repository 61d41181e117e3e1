"""Masks beside independent judges: `regex`'s partial matching, and `jsonschema` on whole texts."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import numpy as np
import pytest
import regex
from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from support.byte_vocabulary import EOS, EOS_MASK, TOKENS, ids_of, matcher_of
from support.random_schemas import RandomSchemas
from taco_gateway.text.grammar.canonical import canonical_grammar
from taco_worker.grammars.row_masks import Draft, RowMasks

# A character of UTF-8 (RFC 3629) but for some of one byte.
_LONG = (
    rb"[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}"
    rb"|\xed[\x80-\x9f][\x80-\xbf]|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}"
    rb"|\xf4[\x80-\x8f][\x80-\xbf]{2}"
)
# The expression of a request, and the same over bytes.
PATTERNS: list[tuple[str, bytes]] = [
    ("(ab|abba|b)?", b"(ab|abba|b)?"),
    ("[a-c]{2,5}c?", b"[a-c]{2,5}c?"),
    (r"[0-9]{1,3}(\.[0-9]+)?", rb"[0-9]{1,3}(\.[0-9]+)?"),
    (r"(ab*)+[^\x00-\x7f]{0,2}", rb"(ab*)+(" + _LONG + rb"){0,2}"),
    ("true|false|null|12{2}", b"true|false|null|12{2}"),
    ("[^a]*", rb"([\x00-\x60\x62-\x7f]|" + _LONG + b")*"),
    ("(é|日本|e)+x", "(é|日本|e)+x".encode()),
    (r'"[^"\\]{0,3}",? ?', rb'"([\x00-\x21\x23-\x5b\x5d-\x7f]|' + _LONG + rb'){0,3}",? ?'),
    (r"a{3}b{2,}|\n\n", rb"a{3}b{2,}|\n\n"),
]


def mask_after(matcher: LLMatcher, unread: list[int]) -> set[int]:
    masks = RowMasks.of(
        matcher,
        unread,
        Draft([], []),
        EOS_MASK,
        num_generated=0,
        min_tokens=0,
        ignores_eos=False,
    )
    assert not masks.error
    return ids_of(masks.bits[0])


def allowed_by(pattern: bytes, before: bytes) -> set[int]:
    """All tokens of the vocabulary that a text of the pattern may continue with."""
    compiled = regex.compile(pattern)
    ordinary = (token_id for token_id in range(len(TOKENS)) if token_id not in EOS)
    found = {i for i in ordinary if compiled.fullmatch(before + TOKENS[i], partial=True)}
    return found | set(EOS) if compiled.fullmatch(before) else found


@pytest.mark.parametrize(("text", "pattern"), PATTERNS, ids=str)
def test_masks_of_an_expression_are_those_of_partial_matching(text: str, pattern: bytes) -> None:
    generator = np.random.default_rng(0)
    matched = 0
    for _ in range(25):
        matcher, before, unread = matcher_of(canonical_grammar("regex", text, {})), b"", list[int]()
        for _ in range(12):
            expected, mask = allowed_by(pattern, before), mask_after(matcher, unread)
            first_bytes = {TOKENS[i][0] for i in expected - set(EOS)}
            if mask != expected:
                # Of a forced text only the tokenizer's own tokens are allowed: single bytes.
                assert len(first_bytes) == 1
                assert mask == first_bytes
            matched += mask == expected
            others = sorted(mask - set(EOS))
            if not others:
                break
            unread = [int(generator.choice(others))]
            before += TOKENS[unread[0]]
    assert matched > 25


def accepts(matcher: LLMatcher, text: bytes) -> bool:
    """Whether masks allow a text: each step takes the longest token that continues it."""
    unread: list[int] = []
    while text:
        mask = mask_after(matcher, unread)
        fitting = [i for i in mask - set(EOS) if text.startswith(TOKENS[i])]
        if not fitting:
            return False
        unread = [max(fitting, key=lambda token_id: len(TOKENS[token_id]))]
        text = text[len(TOKENS[unread[0]]) :]
    return set(EOS) <= mask_after(matcher, unread)


def test_schemas_allow_what_jsonschema_finds_valid() -> None:
    schemas = RandomSchemas(0)
    verdicts: list[tuple[bool, bool]] = []
    for _ in range(120):
        schema = schemas.schema()
        validator = jsonschema.Draft202012Validator(schema)
        compiled = matcher_of(canonical_grammar("json", schema, {}))
        for number in range(6):
            value = schemas.value(schema)
            assert validator.is_valid(value)
            judged = schemas.mutated(value) if number else value
            text = json.dumps(judged, ensure_ascii=False, indent=number % 3 or None)
            found = accepts(compiled.deep_copy(), text.encode())
            assert found == validator.is_valid(judged), (schema, text)
            verdicts.append((number > 0, found))
    assert verdicts.count((True, True)) > 20
    assert verdicts.count((True, False)) > 100


# Texts that a parser of JSON must not read as a schema's value.
@pytest.mark.parametrize(
    "text", ['{"a": 1,}', "{'a': 1}", '{"a": 01}', '{"a": 1} x', '{"a": 1', '{"a":1}{"a":1}', ""]
)
def test_texts_that_are_no_json_are_not_allowed(text: str) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert accepts(matcher_of(canonical_grammar("json", schema, {})), b'{"a": 1}')
    assert not accepts(matcher_of(canonical_grammar("json", schema, {})), text.encode())


def test_a_grammar_in_either_notation_is_followed() -> None:
    for notation in ('start: "[" /[0-9]+/ "]"', 'root ::= "[" [0-9]+ "]"'):
        matcher = matcher_of(any_to_lark(notation))
        assert accepts(matcher.deep_copy(), b"[120]")
        assert not accepts(matcher.deep_copy(), b"[]")
