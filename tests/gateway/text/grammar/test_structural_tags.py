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
from taco_gateway.text.grammar.structural_tags import structural_tag_grammar
from taco_gateway.text.grammar.tag_fields import TagTokens

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


def sequence(*elements: Any) -> dict[str, Any]:
    return of({"type": "sequence", "elements": list(elements)})


# A structural tag, texts that it allows, and texts that it does not.
CASES: list[tuple[dict[str, Any], list[str], list[str]]] = [
    (LEGACY, ["", "ab < é", '<function=f>{"a":1}</function> more', '<function=f>{"a": 2}</function>'
      * 2], ["<function=f>x", '<function=f>{"a":3}', "<function=h>"]),
    (triggered(F, G), ["x<function=g>y!z<function=f>{\"a\":1}</function>", "<function=g>x?"],
     ["<function=g>z", "<function=g>x.", "<function=x"]),
    (triggered(G, at_least_one=True, stop_after_first=True), ["<function=g>x!"],
     ["abc", "<function=g>x! ", "", "abc<function=g>x!"]),
    (triggered(G, at_least_one=True), ["<function=g>x! ab<function=g>y?"],
     ["abc", "", "abc<function=g>x!", "<function=g>x!<function=z"]),
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
    (of({"type": "json_schema", "style": "minimax_xml", "json_schema": SCHEMA}),
     ['<parameter name="a">1</parameter>'], ['<parameter name="a">3</parameter>', '{"a":1}']),
    (of({"type": "json_schema", "style": "glm_xml", "json_schema": SCHEMA}),
     ["<arg_key>a</arg_key><arg_value>2</arg_value>"], ["<arg_key>b</arg_key>", '{"a":1}']),
    (of({**JSON, "max_whitespace_cnt": 1}), ['{"a": 1}'], ['{"a":  1}']),
]  # fmt: skip

END_TEXT = {"type": "const_string", "value": "END"}
THINK = {"begin": "<b>", "end": "</b>", "content": {"type": "any_text"}}
CALL_TOKEN = {"type": "token", "token": "<tool_call>"}
# Free text that excludes texts, or that other parts follow.
FREE_TEXT: list[tuple[dict[str, Any], list[str], list[str]]] = [
    (of({"type": "any_text", "excludes": ["bad", "<tool_call>"]}), ["", "ba d<b>é", "<|bos|>"],
     ["a bad", "<tool_call>", "x<tool_call>"]),
    (of({"type": "any_text", "excludes": ["<tool_call>"]}), ["", "bad"], ["a<tool_call>"]),
    (of({"type": "any_text", "max_chars": 3}), ["", "abc", "éé"], ["abcd"]),
    (of({"type": "any_text", "max_chars": 0}), [""], ["a"]),
    (triggered(G, excludes=["bad", "</end>"]), ["a<function=g>x!ba", "b</en"],
     ["abad", "</end>", "<function=g>x!bad"]),
    (sequence({"type": "any_text"}, END_TEXT), ["END", "a E<b>NDEND"], ["a", "ENDx", "ENDEND"]),
    (sequence({"type": "any_text", "excludes": ["bad"]}, END_TEXT, {"type": "tag", **G}),
     ["abEND<function=g>x!"], ["abadEND<function=g>x!", "abEND", "END<function=h"]),
    (sequence({"type": "any_text", "max_chars": 2}, END_TEXT), ["END", "abEND"], ["abcEND"]),
    (sequence({"type": "any_text", "excludes": ["bad"]}, JSON), ['so: {"a":1}', '{"a":1}'],
     ['bad{"a":1}', "so", '{"a":1}x', '{{"a":1}']),
    (sequence({"type": "any_text", "max_chars": 2}, JSON), ['so{"a":1}'], ['so:{"a":1}']),
    (sequence({"type": "tag", **THINK}, {"type": "triggered_tags", "triggers": ["<function="],
                                         "tags": [F]}),
     ["<b>hm</b>", '<b><function=</b>a<function=f>{"a":1}</function>b'],
     ["a", "<b>hm", "<b></b><function=x"]),
    (sequence({"type": "any_text"}, {"type": "or", "elements": [END_TEXT, {"type": "tag", **G}]}),
     ["aEND", "a<function=g>x!"], ["a", "a<function=g>z"]),
    (sequence({"type": "any_text"}, {"type": "optional", "content": END_TEXT}, CALL_TOKEN),
     ["aEND<tool_call>", "a<tool_call>"], ["a", "aENDb"]),
    (of({"type": "tag", "begin": "<b>", "end": ["</b>", "</b>!"], "content": {"type": "any_text"}}),
     ["<b>a</b>", "<b>a</b>!"], ["<b>a</b>!!", "<b>a"]),
    (of({"type": "tag", "begin": "<b>", "end": "</b>", "content": {
        "type": "triggered_tags", "triggers": ["<function="], "tags": [G], "excludes": ["bad"]}}),
     ["<b></b>", "<b>x<function=g>x!y<function=g>y?</b>"],
     ["<b>x<function=z", "<b>bad", "<b>x</b>y", "<b><function=g>x!"]),
    (of({"type": "tag", "begin": "<tool_call>", "end": "</tool_call>", "content": {
        "type": "triggered_tags", "triggers": ["<function="], "tags": [G]}}),
     ["<tool_call>x<function=g>x!y</tool_call>"], ["<tool_call>x<function=g>z", "<tool_call>x"]),
    (sequence({"type": "triggered_tags", "triggers": ["<function="], "tags": [G],
               "stop_after_first": True}, END_TEXT),
     ["aEND", "a<function=g>x!END"], ["a<function=g>x!aEND", "a"]),
    (sequence({"type": "triggered_tags", "triggers": ["<function="], "tags": [G],
               "at_least_one": True}, END_TEXT),
     ["<function=g>x!aEND"], ["aEND", "<function=g>x!a"]),
    (of({"type": "dispatch", "rules": [["<n>", {"type": "regex", "pattern": "[0-9]{2}"}],
                                       ["<m>", END_TEXT]], "excludes": ["bad"]}),
     ["a<n>12b<m>END c", ""], ["<n>x", "<m>x", "bad"]),
    (sequence({"type": "dispatch", "rules": [["<n>", {"type": "regex", "pattern": "[0-9]{2}"}]],
               "loop": False}, END_TEXT),
     ["a<n>12END", "aEND"], ["a<n>12aEND", "<n>1"]),
]  # fmt: skip
# Parts that are repeated or left out, and parts of tokens.
REPEATED: list[tuple[dict[str, Any], list[str], list[str]]] = [
    (sequence({"type": "optional", "content": {"type": "const_string", "value": "a"}}, JSON),
     ['a{"a":1}', '{"a":1}'], ['aa{"a":1}', "a"]),
    (of({"type": "star", "content": {"type": "tag", **G}}), ["", "<function=g>x!<function=g>y?"],
     ["<function=g>x!y"]),
    (of({"type": "plus", "content": END_TEXT}), ["END", "ENDEND"], ["", "ENDE"]),
    (of({"type": "repeat", "min": 1, "max": 2, "content": END_TEXT}), ["END", "ENDEND"],
     ["", "ENDENDEND"]),
    (of({"type": "repeat", "min": 2, "max": -1, "content": END_TEXT}), ["ENDEND", "END" * 5],
     ["", "END"]),
    (of({"type": "repeat", "min": 0, "max": 0, "content": END_TEXT}), [""], ["END"]),
    (sequence({"type": "repeat", "min": 1, "max": 1, "content": END_TEXT}, JSON),
     ['END{"a":1}'], ['ENDEND{"a":1}']),
    (of({"type": "star", "content": {"type": "optional", "content": END_TEXT}}), ["", "ENDEND"],
     ["a"]),
    (sequence({"type": "any_text"}, {"type": "plus", "content": END_TEXT}), ["aEND", "aENDEND"],
     ["a", "aENDb"]),
    (sequence({"type": "any_text"}, {"type": "star", "content": END_TEXT}), ["a", "aENDEND"],
     ["aENDb"]),
    (of({"type": "tag", "begin": CALL_TOKEN, "content": JSON,
         "end": {"type": "token", "token": "</tool_call>"}}),
     ['<tool_call>{"a":1}</tool_call>'], ['{"a":1}', '<tool_call>{"a":1}']),
    (of({"type": "tag", "begin": CALL_TOKEN, "content": {"type": "any_tokens"},
         "end": {"type": "token", "token": "</tool_call>"}}),
     ["<tool_call>é<|bos|></tool_call>"], ["<tool_call>a</tool_call>b", "<tool_call>a", "a"]),
    (of({"type": "any_tokens", "exclude_tokens": ["<tool_call>"], "max_tokens": 1}), ["", "a"],
     ["<tool_call>", "a\x00\x01"]),
    (of({"type": "any_text", "max_tokens": 1}), ["", "a"], ["a\x00\x01"]),
    (of({"type": "tag", "begin": "<b>", "end": CALL_TOKEN,
         "content": {"type": "exclude_token", "exclude_tokens": ["<|bos|>"]}}),
     ["<b></tool_call><tool_call>", "<b>a<tool_call>"],
     ["<b><|bos|>", "<b><tool_call><tool_call>", "<b><tool_call>"]),
    (of({"type": "token_triggered_tags", "trigger_tokens": ["<tool_call>"], "tags": [
        {**CALL, "begin": CALL_TOKEN}], "exclude_tokens": ["<|bos|>"]}),
     ['a<tool_call>{"a":1}</tool_call>b', "a"], ["<|bos|>", "<tool_call>x"]),
    (of({"type": "token_dispatch", "rules": [["<tool_call>", END_TEXT]]}),
     ["a<tool_call>ENDb", ""], ["<tool_call>x"]),
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


@pytest.mark.parametrize("case", [*CASES, *FREE_TEXT, *REPEATED])
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
    (triggered(F, excludes=[1]), "structural_tag.format.excludes[0] must be a string"),
    (triggered(F, excludes="a"), "structural_tag.format.excludes must be a list"),
    (of({"type": "any_text", "excludes": ["<tool_call>x"]}), "excludes[0]: beside a special"),
    (triggered(F, triggers=["<function=", "<func"]), "tags[0].begin begins with more than one"),
    (sequence({"type": "any_text"}, {"type": "regex", "pattern": "a"}), "format.elements[0]: what"),
    (sequence({"type": "triggered_tags", "triggers": ["<f"], "tags": [F]}, JSON),
     "format.elements[0]: what follows triggered_tags"),
    (of({"type": "star", "content": {"type": "any_text"}}), "content: what follows any_text"),
    (of({"type": "any_text", "max_chars": -1}), "format.max_chars must be an integer"),
    (of({"type": "any_text", "max_chars": 10**6}), "format.max_chars must be at most 100000"),
    (sequence({"type": "any_text", "max_tokens": 3}, END_TEXT), "elements[0].max_tokens is only"),
    (sequence({"type": "any_tokens"}, END_TEXT), "elements[0]: a special token or"),
    (of({"type": "repeat", "min": 2, "max": 1, "content": END_TEXT}), "format.max must be"),
    (of({"type": "repeat", "min": True, "max": 1, "content": END_TEXT}), "format.min must be"),
    (of({"type": "token", "token": "<none>"}), "format.token: '<none>' is no special token"),
    (of({"type": "token", "token": 10**6}), "format.token must be the text of a special token"),
    (of({"type": "dispatch", "rules": [["a"]]}), "format.rules[0] must be a list of a pattern"),
    (of({"type": "dispatch", "rules": [["", END_TEXT]]}), "format.rules[0][0] must be a string"),
    (of({"type": "token_triggered_tags", "trigger_tokens": [5], "tags": [F]}),
     "token 5 is no special token"),
    (of({**JSON, "any_order": True}), "format.any_order is not supported"),
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
