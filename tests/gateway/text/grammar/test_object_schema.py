"""The schemas of tools' parameters, divided into their properties."""

import json
from typing import Any

import pytest

from taco_gateway.text.grammar.answer_grammar import answer_grammar
from taco_gateway.text.grammar.answer_rules import (
    AnswerRules,
    CallableTool,
    CallRules,
    Enforcement,
)
from taco_gateway.text.grammar.object_schema import properties
from taco_gateway.text.response.built_in import TOOL_FORMATS

NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "tree": {"$ref": "#/$defs/node"},
        "trees": {"type": "array", "items": {"$ref": "#/$defs/node"}},
        "named": {"type": "object", "properties": {"$ref": {"type": "null"}}},
        "own": {"type": "string", "$defs": {"x": {"$ref": "#/$defs/node"}}},
        "constant": {"const": {"$ref": "#/$defs/node"}},
        "number": {"type": "integer"},
        "anything": True,
        "nothing": False,
    },
    "$defs": {"node": NODE},
}


def tool(schema: dict[str, Any]) -> CallableTool:
    return CallableTool("f", schema, "tools[0].function.parameters", Enforcement.STRICT)


def test_definitions_are_copied_where_a_reference_needs_them() -> None:
    documents = {part.name: part.document for part in properties(tool(PARAMETERS))}
    assert {name for name, document in documents.items() if "$defs" in document} == {
        "tree",
        "trees",
    }
    copied = documents["tree"]["$defs"]["parameters"]
    assert documents["tree"]["$ref"] == "#/$defs/parameters/$defs/node"
    target = "#/$defs/parameters/$defs/node"
    assert copied["$defs"]["node"]["properties"]["next"] == {"$ref": target}
    assert documents["constant"] == {"const": {"$ref": "#/$defs/node"}}
    assert (documents["anything"], documents["nothing"]) == ({}, {"enum": []})
    assert PARAMETERS["properties"]["own"]["$defs"], "the request's schema was changed"


@pytest.mark.parametrize("name", ["qwen3_coder", "pythonic"])
def test_a_grammar_grows_with_the_schema_and_not_with_its_square(name: str) -> None:
    def size(count: int) -> int:
        kinds: list[Any] = [{"type": "integer"}, {"type": ["string", "null"], "maxLength": 9}]
        schema = {
            "type": "object",
            "properties": {f"property_{k:04d}": kinds[k % 2] for k in range(count)},
        }
        calls = CallRules(format=TOOL_FORMATS[name], tools=(tool(schema),), is_required=True)
        grammar = answer_grammar(AnswerRules(calls=calls), has_content=False)
        return len(grammar.text) + len(json.dumps([part.value for part in grammar.parts]))

    assert size(400) < 5 * size(100)
