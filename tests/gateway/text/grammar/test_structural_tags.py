"""Structural tags: the texts that they allow, and those that are rejected with their path."""

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher

from support.grammar_walks import Vocabulary
from taco_gateway.text.grammar.answer_rules import ids_without_text
from taco_gateway.text.grammar.canonical import ConstraintError
from taco_gateway.text.grammar.grammar_process import grammar_text
from taco_gateway.text.grammar.structural_tags import TagTokens, structural_tag_grammar

SCHEMA = {
    "type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"],
    "additionalProperties": False,
}  # fmt: skip
JSON = {"type": "json_schema", "json_schema": SCHEMA}
F = {"begin": "<function=f>", "content": JSON, "end": "</function>"}
G = {"begin": "<function=g>", "content": {"type": "regex", "pattern": "[xy]"}, "end": ["!", "?"]}
CALL = {"begin": "<tool_call>", "content": JSON, "end": "</tool_call>"}
LEGACY = {
    "type": "structural_tag",
    "structures": [{"begin": "<function=f>", "schema": SCHEMA, "end": "</function>"}],
    "triggers": ["<function="],
}


def of(form: Any) -> dict[str, Any]:
    return {"type": "structural_tag", "format": form}


def triggered(*tags: Any, triggers: Any = ("<function=",), **more: Any) -> dict[str, Any]:
    return of({"type": "triggered_tags", "triggers": list(triggers), "tags": list(tags), **more})


# A structural tag, texts that it allows, and texts that it does not.
CASES: list[tuple[dict[str, Any], list[str], list[str]]] = [
    (LEGACY, ["", "ab < é", '<function=f>{"a":1}</function> more', '<function=f>{"a": 2}</function>'
      * 2], ["<function=f>x", '<function=f>{"a":3}', "<function=h>"]),
    (triggered(F, G), ["x<function=g>y!z<function=f>{\"a\":1}</function>", "<function=g>x?"],
     ["<function=g>z", "<function=g>x.", "<function=x"]),
    (triggered(G, at_least_one=True, stop_after_first=True), ["abc<function=g>x!"],
     ["abc", "<function=g>x! ", ""]),
    (triggered(G, at_least_one=True), ["abc<function=g>x! ab<function=g>y?"], ["abc"]),
    (triggered(G, stop_after_first=True), ["abc", "<function=g>x!"], ["<function=g>x!a"]),
    (triggered(CALL, triggers=["<tool"]), ['a<tool_call>{"a":1}</tool_call>b', "<tool"],
     ["<tool_call>x"]),
    (triggered(CALL, G, triggers=["<tool_call>", "<function="]),
     ['a<tool_call>{"a":1}</tool_call>b<function=g>x!', "<|bos|>a"],
     ["<tool_call>x", "a<function=g>z"]),
    (of({"type": "sequence", "elements": [
        {"type": "const_string", "value": "ok "}, {"type": "or", "elements": [JSON, {
            "type": "grammar", "grammar": 'root ::= "x" | "y"'}]}, {"type": "any_text"}]}),
     ['ok {"a":1} and', "ok xyz"], ["ok z", "o"]),
    (of({"type": "tag", "begin": "<b>", "content": {"type": "any_text"}, "end": "</b>"}),
     ["<b>a<c>é</b>"], ["<b>a", "<b></b>x"]),
    (of({"type": "tags_with_separator", "tags": [G], "separator": ";", "at_least_one": True}),
     ["<function=g>x!;<function=g>y?"], ["", "<function=g>x!<function=g>y?"]),
    (of({"type": "tags_with_separator", "tags": [G], "separator": ";", "stop_after_first": True}),
     ["", "<function=g>x!"], ["<function=g>x!;<function=g>y?"]),
    (of({"type": "json_schema", "style": "qwen_xml", "json_schema": SCHEMA}),
     ["<parameter=a>\n1\n</parameter>\n"], ["<parameter=a>\n3\n</parameter>", '{"a":1}']),
]  # fmt: skip


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.of(["<tool_call>", "</tool_call>"])


def matcher(vocabulary: Vocabulary, value: Any) -> LLMatcher:
    tokenizer = vocabulary.tokenizer
    hidden = ids_without_text(tokenizer.added_tokens, tokenizer.special_ids)
    tokens = TagTokens(
        without_text={text: n for text, n in tokenizer.added_tokens.items() if n in hidden},
        end_ids=vocabulary.end_ids,
        vocab_size=tokenizer.vocab_size,
    )
    tag = json.loads(json.dumps(asdict(structural_tag_grammar(value, tokens))))
    text = grammar_text({"tag": tag, "vocab_size": tokens.vocab_size})
    made = LLMatcher(vocabulary.tokens, text, log_level=0)
    assert not made.is_error(), made.get_error()
    return made


def allows(vocabulary: Vocabulary, start: LLMatcher, text: str) -> bool:
    """Whether the tokens of a text are allowed, one by one, and may be a whole answer."""
    made = start.deep_copy()
    for token_id in vocabulary.tokenizer.encode(text, add_special_tokens=False):
        if token_id not in vocabulary.allowed(made):
            return False
        assert made.consume_token(token_id), made.get_error()
    return bool(made.is_accepting())


@pytest.mark.parametrize("case", CASES)
def test_the_texts_of_a_structural_tag(vocabulary: Vocabulary, case: Any) -> None:
    value, right, wrong = case
    for given in (value, json.dumps(value)):
        made = matcher(vocabulary, given)
        for text in right:
            assert allows(vocabulary, made, text), text
        for text in wrong:
            assert not allows(vocabulary, made, text), text


def test_random_texts_have_valid_parts(vocabulary: Vocabulary) -> None:
    random = np.random.default_rng(3)
    made = matcher(vocabulary, triggered(CALL, triggers=["<tool_call>"], at_least_one=True))
    for _ in range(5):
        text = vocabulary.tokenizer.decode(
            vocabulary.walk(made.deep_copy(), random), skip_special_tokens=False
        )
        inside = [part.partition("</tool_call>")[0] for part in text.split("<tool_call>")[1:]]
        assert inside
        assert all(json.loads(part) in ({"a": 1}, {"a": 2}) for part in inside)


BAD: list[tuple[Any, str]] = [
    ("[1", "not valid JSON"),
    ([], "must be an object"),
    ({}, "structural_tag.structures must be a list"),
    (of(None), "structural_tag.format.type must be one of"),
    (of({"type": "html"}), "structural_tag.format.type must be one of"),
    ({"structures": [1], "triggers": ["a"]}, "each of them must be an object"),
    ({**LEGACY, "triggers": [""]}, "structural_tag.triggers"),
    ({**LEGACY, "triggers": ["x"]}, "structural_tag.structures[0].begin"),
    (triggered(F, excludes=["a"]), "structural_tag.format.excludes is not supported"),
    (of({"type": "sequence", "elements": [{"type": "any_text"}, JSON]}), "format.elements[0]"),
    (of({**F, "type": "tag", "end": 3}), "structural_tag.format.end"),
    (of({**JSON, "style": "yaml"}), "structural_tag.format.style"),
    (of({"type": "regex", "pattern": "(?=a)"}), "structural_tag.format.pattern"),
    (of({"type": "json_schema", "json_schema": {"not": {}}}),
     "structural_tag.format.json_schema/: keyword 'not'"),
    (triggered(F, at_least_one=1), "at_least_one must be true or false"),
]  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_tags_are_rejected_with_their_path(vocabulary: Vocabulary, case: Any) -> None:
    value, words = case
    with pytest.raises(ConstraintError) as error:
        matcher(vocabulary, value)
    assert words in str(error.value)
