"""Schemas of tools that cannot be enforced as a whole: an error if strict, else what can be."""

import json
from dataclasses import asdict
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from taco_gateway.text.grammar.answer_grammar import answer_grammar
from taco_gateway.text.grammar.answer_rules import (
    AnswerRules,
    CallableTool,
    CallRules,
    Enforcement,
)
from taco_gateway.text.grammar.canonical import ConstraintError
from taco_gateway.text.grammar.grammar_process import grammar_text
from taco_gateway.text.grammar.validation import _ByteTokens
from taco_gateway.text.response.built_in import TOOL_FORMATS

PLACE = "tools[0].function.parameters"
NAMES = ("hermes", "pythonic", "qwen3_coder")
# As pydantic writes Decimal: `[+-]` and `\d` are quoted in another notation in llguidance's error.
DECIMAL = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"
UNENFORCEABLE: dict[str, tuple[dict[str, Any], str]] = {
    "look-around": ({"type": "string", "pattern": DECIMAL}, "pattern"),
    "boundary": ({"anyOf": [{"type": "null"}, {"pattern": r"\bx", "type": "string"}]}, "pattern"),
    "reference": ({"$ref": "https://example.com/x"}, "$ref"),
    "broken reference": ({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/none"}]}, "$ref"),
    "type": ({"type": "any"}, "type"),
    "types": ({"type": ["null", "any"]}, "type"),
    "names": ({"type": "object", "patternProperties": {"(?=a)": {}}}, "patternProperties"),
}


def grammar_of(name: str, parameters: dict[str, Any], enforcement: Enforcement) -> str:
    tool = CallableTool("f", parameters, PLACE, enforcement)
    calls = CallRules(format=TOOL_FORMATS[name], tools=(tool,), is_required=True, has_one_call=True)
    rules = AnswerRules(end_ids=frozenset([256]), vocab_size=300, calls=calls)
    grammar = asdict(answer_grammar(rules, has_content=False))
    return grammar_text(json.loads(json.dumps({"answer": grammar, "vocab_size": 300})))


def parameters_with(schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"d": schema, "n": {"type": "integer"}},
        "required": ["d", "n"],
        "additionalProperties": False,
    }


def written(name: str, d: Any, n: str) -> str:
    """A call with a JSON value as `d`, and the text of one as `n`."""
    value = json.dumps(d)
    match name:
        case "hermes":
            arguments = f'{{"d": {value}, "n": {n}}}'
            return f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
        case "pythonic":
            return f"[f(d={value}, n={n})]"
    plain = d if isinstance(d, str) else value
    arguments = "".join(
        f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in (("d", plain), ("n", n))
    )
    return f"<tool_call>\n<function=f>\n{arguments}</function>\n</tool_call>"


def accepts(grammar: str, text: str) -> bool:
    tokenizer = LLTokenizer(TokenizerWrapper(_ByteTokens(300)), slices=[])
    matcher, tokens = LLMatcher(tokenizer, grammar, log_level=0), list(text.encode())
    return bool(matcher.consume_tokens(tokens)) and matcher.is_accepting()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", UNENFORCEABLE)
def test_the_rest_of_a_lenient_schema_is_enforced(name: str, case: str) -> None:
    schema, _ = UNENFORCEABLE[case]
    grammar = grammar_of(name, parameters_with(schema), Enforcement.LENIENT)
    value = {"a": 1} if case == "names" else "1.5"
    assert accepts(grammar, written(name, value, "7"))
    assert not accepts(grammar, written(name, value, "true"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", UNENFORCEABLE)
def test_an_error_of_a_strict_schema_has_the_path(name: str, case: str) -> None:
    schema, keyword = UNENFORCEABLE[case]
    with pytest.raises(ConstraintError) as raised:
        grammar_of(name, parameters_with(schema), Enforcement.STRICT)
    message = str(raised.value)
    assert message.startswith(f"{PLACE}/properties/d")
    assert f"keyword '{keyword}'" in message
    assert "start:" not in message
    assert raised.value.param == "tools"


@pytest.mark.parametrize("name", NAMES)
def test_patterns_of_lenient_tools_are_enforced(name: str) -> None:
    parameters = parameters_with({"type": "string", "pattern": "^[ab]|/$"})
    parameters["properties"]["m"] = {"type": "string", "pattern": "(?=a)b"}
    grammar = grammar_of(name, parameters, Enforcement.LENIENT)
    assert accepts(grammar, written(name, "axx", "7"))
    assert accepts(grammar, written(name, "xx/", "7"))
    assert not accepts(grammar, written(name, "xxa", "7"))


@pytest.mark.parametrize("name", NAMES)
def test_parameters_behind_a_broken_reference_are_free(name: str) -> None:
    parameters = {"$ref": "https://example.com/x"}
    assert accepts(grammar_of(name, parameters, Enforcement.LENIENT), written(name, "x", "7"))
    with pytest.raises(ConstraintError, match=r"parameters(/?): keyword '\$ref'"):
        grammar_of(name, parameters, Enforcement.STRICT)


@pytest.mark.parametrize("name", NAMES)
def test_invalid_lenient_schemas_are_errors(name: str) -> None:
    schemas: list[dict[str, Any]] = [{"enum": []}, {"type": "array", "minItems": -1}]
    for schema in schemas:
        parameters = parameters_with({"anyOf": [schema], "pattern": "(?=a)b"})
        with pytest.raises(ConstraintError, match=r"^tools\[0\].function.parameters"):
            grammar_of(name, parameters, Enforcement.LENIENT)


@pytest.mark.parametrize("enforcement", [Enforcement.STRICT, Enforcement.LENIENT])
def test_a_union_that_contains_itself_is_read_once(enforcement: Enforcement) -> None:
    union = [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/x"}, {"type": "string", "pattern": "^a"}]
    parameters = {**parameters_with({"$ref": "#/$defs/x"}), "$defs": {"x": {"anyOf": union}}}
    grammar = grammar_of("qwen3_coder", parameters, enforcement)
    assert accepts(grammar, written("qwen3_coder", "ab", "7"))
    assert not accepts(grammar, written("qwen3_coder", "b", "7"))
