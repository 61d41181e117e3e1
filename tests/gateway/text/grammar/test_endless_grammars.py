"""Grammars without a finite text are rejected, and alternatives without one are left out."""

import json
from typing import Any

import pytest
from llguidance import LLMatcher

from taco_gateway.text.grammar.canonical import ConstraintError
from taco_gateway.text.grammar.endless_grammars import without_endless_rules
from taco_gateway.text.grammar.grammar_process import grammar_text
from taco_gateway.text.grammar.validation import _tokenizer

# A grammar, and the rule that its error names.
ENDLESS = [
    ('start: "a" start', "start"),
    ("start: start", "start"),
    ('start: start "a"', "start"),
    ('start: x\nx: "a" y\ny: "b" x | "c" y', "x"),
    ('start: "a" b\nb: b "q"\n', "b"),
    ('start: ("a" | "c") b{2,}\nb: ("x" b)+', "b"),
    ('root ::= "a" root', "root"),
    ('root ::= "a" x\nx ::= ("b" | "c") x', "x"),
    ('start: %lark { start: "a" start }', "start"),
    ('%llguidance {}\nstart[capture]: "a" b::0\nb::_: "x" b::incr(_) %if lt(_, 3)', "b"),
    ('%llguidance {}\n?start: "a" start // "b"\n\n%ignore " "', "start"),
]
# A grammar, texts that it allows, and texts after which nothing could end.
PARTLY = [
    ('start: "a" start | "b"', ["aab", "b"], ["c"]),
    ('start: "a" | b\nb: "x" b', ["a"], ["x"]),
    ('start: ("a" | "x" b // hi\n | c) d?\nb: b "q"\nc: "c"+\nd: "x" d', ["a", "cc"], ["x", "ax"]),
    ('start: b | c | "z" | b | "y"\nb: b\nc: "c" c', ["z", "y"], ["c"]),
    ('start: [b] "a" b* c{0,2}\nb: "x" b\nc: "c" b | "d"', ["a", "add"], ["x", "ax", "ac"]),
    ('root ::= "a" (x | "b")*\nx ::= "q" x', ["a", "abb"], ["aq"]),
    ('start: %lark { start: "a" start | "b"\n } | b\nb: "x" b', ["ab"], ["x"]),
    ('start: "a" /b|c:/ %json {"const": "start: start"} | %json {"type": "null"} x\nx: x',
     ['ab"start: start"'], ["null"]),
]  # fmt: skip


def made(grammar: str) -> str:
    return grammar_text({"kind": "grammar", "value": grammar, "options": {}})


@pytest.mark.parametrize(("grammar", "rule"), ENDLESS)
def test_the_error_names_the_rule_that_never_ends(grammar: str, rule: str) -> None:
    with pytest.raises(ConstraintError, match=f"no finite text matches it: rule '{rule}'"):
        made(grammar)


@pytest.mark.parametrize(("grammar", "allowed", "refused"), PARTLY)
def test_alternatives_without_an_end_are_left_out(
    grammar: str, allowed: list[str], refused: list[str]
) -> None:
    matcher = LLMatcher(_tokenizer(0), made(grammar), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    for text in allowed:
        copy = matcher.deep_copy()
        assert copy.consume_tokens(list(text.encode())), text
        assert copy.is_accepting(), text
    for text in refused:
        assert matcher.validate_tokens(list(text.encode())) < len(text), text


@pytest.mark.parametrize("value", [
    'start: "a" | "b"\n', 'start: a{3}\na: "x" "y"', 'start: "a" -> name\n | /b|:/i // start: s',
    "start: <[1-3]> @other <tool>", 'start: "unfinished', "start: a{x}", "a" * 1000,
    "start: " + "(" * 500 + '"a"' + ")" * 500,
])  # fmt: skip
def test_other_grammars_stay_as_they_are(value: str) -> None:
    assert without_endless_rules(value) == value


def test_it_takes_linear_time() -> None:
    def chain(length: int) -> str:
        rules = (f'r{i}: "a" r{i + 1} | "x" z{i}\nz{i}: z{i} "q"' for i in range(length))
        return "\n".join(["start: r0", *rules, f'r{length}: "b"'])

    kept = without_endless_rules(chain(3000))
    assert "z" not in kept
    assert kept.count('"a" r') == 3000
    with pytest.raises(ValueError, match="r2999"):
        without_endless_rules(chain(3000).replace('r3000: "b"', 'r3000: "b" r2999'))


@pytest.mark.parametrize(("kind", "value", "words"), [
    ("grammar", 'start: "a" start', "tools[0].x: no finite text matches it: rule 'start'"),
    ("json", {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
     "tools[0].x: no value is valid: each would be infinitely deep"),
])  # fmt: skip
def test_a_part_of_a_grammar_must_have_an_end(kind: str, value: Any, words: str) -> None:
    part = {"name": "p", "kind": kind, "value": value, "place": "tools[0].x"}
    tag = {"text": 'start: "x" | @p', "parts": [part]}
    with pytest.raises(ConstraintError) as error:
        grammar_text(json.loads(json.dumps({"tag": tag, "vocab_size": 0})))
    assert words in str(error.value)
    assert error.value.param == "tools"
