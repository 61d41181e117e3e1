"""Turns a constraint into the canonical grammar: one text in llguidance's form.

The text is a JSON object with one grammar, so that a client's text is never read as anything else.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

# Whitespace between tokens of JSON. Without a limit a model may write it until its length ends.
DEFAULT_WHITESPACE = r"[\x20\x0A\x0D\x09]{0,20}"
# It would change how a schema is read, up to ignoring what cannot be enforced.
_OPTIONS = "x-guidance"
# Keywords whose values are schemas, lists of schemas, or schemas by name.
_SCHEMAS = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "contains",
        "else",
        "if",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
_SCHEMA_LISTS = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_SCHEMA_MAPS = frozenset(
    {"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"}
)

Path = tuple[str, ...]


class ConstraintError(ValueError):
    """A constraint is invalid. The message is for clients."""


def canonical_grammar(kind: str, value: Any, options: Mapping[str, Any]) -> str:
    """The canonical grammar of a constraint; it has not been validated.

    Args:
        kind: name of the field of `StructuredOutputsParams` that is set.
        value: its value; a schema is an object, true, false, or a JSON text.
        options: the other fields.

    Raises:
        ConstraintError: the schema is no JSON, or the grammar is in no known notation.
    """
    match kind:
        case "json":
            return _wrapped(json_schema=_with_options(parse_schema(value), options))
        case "json_object":
            return _wrapped(json_schema=_with_options({"type": "object"}, options))
        case "regex":
            text: str = LLMatcher.grammar_from_regex(value)
            return text if value else _wrapped(lark_grammar='start: ""')
        case "choice":
            return _wrapped(
                lark_grammar="start: " + " | ".join(map(_literal, dict.fromkeys(value)))
            )
    if _OPTIONS in value:  # in a schema inside the grammar
        raise ConstraintError(f"a grammar may not contain {_OPTIONS}")
    try:
        return _wrapped(lark_grammar=any_to_lark(value))
    except Exception as error:  # the converter raises many types
        raise ConstraintError(
            f"the grammar is in neither Lark's nor GBNF notation: {error}"
        ) from None


def parse_schema(value: Any) -> dict[str, Any] | bool:
    """The schema as an object; a text is parsed.

    Raises:
        ConstraintError: it is no JSON, or neither an object nor true nor false.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ConstraintError(f"the schema is not valid JSON: {error}") from None
    if not isinstance(value, dict | bool):
        raise ConstraintError("a JSON schema is an object, true or false")
    return value


def subschemas(schema: Any, path: Path = ()) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every object that is a schema, with the path to it, parents first."""
    if not isinstance(schema, dict):
        return
    yield path, schema
    for keyword, value in schema.items():
        if keyword in _SCHEMA_MAPS and isinstance(value, dict):
            for name, part in value.items():
                yield from subschemas(part, (*path, keyword, name))
        elif keyword in _SCHEMA_LISTS and isinstance(value, list):
            for index, part in enumerate(value):
                yield from subschemas(part, (*path, keyword, str(index)))
        elif keyword in _SCHEMAS or keyword in _SCHEMA_LISTS:
            yield from subschemas(value, (*path, keyword))


def _with_options(schema: dict[str, Any] | bool, options: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with the options of this request in place of the client's own."""
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    for _, part in subschemas(schema):
        part.pop(_OPTIONS, None)
        if options.get("disable_additional_properties") and _is_open_object(part):
            part["additionalProperties"] = False
    if options.get("disable_any_whitespace"):
        return {**schema, _OPTIONS: {"whitespace_flexible": False}}
    pattern = options.get("whitespace_pattern") or DEFAULT_WHITESPACE
    return {**schema, _OPTIONS: {"whitespace_flexible": True, "whitespace_pattern": pattern}}


def _is_open_object(schema: Mapping[str, Any]) -> bool:
    closing = ("additionalProperties", "unevaluatedProperties", "patternProperties")
    return "properties" in schema and not any(name in schema for name in closing)


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _wrapped(**grammar: Any) -> str:
    return json.dumps({"grammars": [grammar]}, ensure_ascii=False, separators=(",", ":"))
