"""The parts of a grammar without what cannot be enforced, for tools that are not strict."""

import copy
from dataclasses import replace
from typing import Any

from taco_gateway.text.grammar.canonical import subschemas
from taco_gateway.text.grammar.lark_builder import PATTERN, GrammarPart
from taco_gateway.text.grammar.validation import pattern_problem
from taco_gateway.text.response.local_refs import resolved
from taco_gateway.text.response.typed_values import JSON_TYPES


def enforceable(part: GrammarPart) -> GrammarPart:
    """A lenient part that cannot be compiled, without its patterns, references and types at fault.

    Schemas that are invalid in another way, or have no valid value, stay as they are.
    """
    if part.kind == PATTERN:
        return replace(part, value="")  # a match of it is in any text
    schema = copy.deepcopy(part.value)
    for _, described in list(subschemas(schema)):
        _remove_patterns(described)
        if "$ref" in described and resolved(schema, described) is None:
            del described["$ref"]
        if not _has_known_types(described):
            del described["type"]
    return replace(part, value=schema)


def _remove_patterns(schema: dict[str, Any]) -> None:
    """Remove the patterns of one schema that cannot be enforced."""
    pattern, named = schema.get("pattern"), schema.get("patternProperties")
    if isinstance(pattern, str) and pattern_problem(pattern):
        del schema["pattern"]
    if isinstance(named, dict) and any(map(pattern_problem, named)):
        del schema["patternProperties"]
        schema.pop("additionalProperties", None)  # it means those that no pattern names


def _has_known_types(schema: dict[str, Any]) -> bool:
    named = schema.get("type", [])
    return all(name in JSON_TYPES for name in (named if isinstance(named, list) else [named]))
