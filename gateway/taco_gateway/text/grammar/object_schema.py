"""The schemas of tools' parameters, whole and divided into their properties."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from taco_gateway.text.grammar.answer_rules import CallableTool, Enforcement, param_of
from taco_gateway.text.grammar.canonical import ConstraintError, check_numbers, subschemas
from taco_gateway.text.response.local_refs import resolved

_ROOT = "parameters"  # name of the whole schema within the schema of one property
_PROPERTY_KEYWORDS = frozenset({"properties", "required", "additionalProperties", "type"})
ANNOTATIONS = frozenset(
    {
        "$comment", "$defs", "$id", "$schema", "default", "definitions", "deprecated",
        "description", "examples", "readOnly", "title", "writeOnly",
    }
)  # fmt: skip
NOT_WRITABLE = "is not supported in the model's format of calls"
OUTSIDE = "it must point into the same schema"
_VALUES = frozenset({"const", "default", "enum", "examples"})


@dataclass(frozen=True, slots=True)
class Property:
    """A property of a tool's parameters.

    Attributes:
        schema: its schema, in which references point into the schema of the parameters.
        document: the same as a whole schema; its references point into a copy of the parameters.
    """

    name: str
    is_required: bool
    schema: Any
    document: dict[str, Any]


def object_schema(tool: CallableTool) -> dict[str, Any]:
    """The schema of a tool's parameters, for objects only.

    Raises:
        ConstraintError: it is not the schema of an object, or has an invalid number.
    """
    schema = {} if tool.schema is True else tool.schema
    if tool.enforcement is not Enforcement.NONE:
        try:
            check_numbers(schema)
        except ConstraintError as error:
            raise ConstraintError(f"{tool.place}{error}", param_of(tool.place)) from None
    kinds = schema.get("type", "object") if isinstance(schema, dict) else ()
    if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        raise tool.error("it must be the schema of an object")
    return {**schema, "type": "object"}


def is_open_object(tool: CallableTool) -> bool:
    """Whether arguments may have other properties than those that the schema names."""
    top = resolved(tool.schema, tool.schema)
    return not isinstance(top, dict) or top.get("additionalProperties") is not False


def properties(tool: CallableTool) -> Iterator[Property]:
    """The properties that the schema of a tool's parameters names, in its order.

    Raises:
        ConstraintError: the tool is strict, and the schema demands more than properties.
    """
    root = object_schema(tool)
    top = resolved(root, root)
    if tool.enforcement is Enforcement.STRICT:
        if not isinstance(top, dict):
            raise tool.error(f"keyword '$ref': {OUTSIDE}")
        for keyword in (*root, *top):
            if keyword not in _PROPERTY_KEYWORDS | ANNOTATIONS | {"$ref"}:
                raise tool.error(f"keyword {keyword!r} {NOT_WRITABLE}")
    top = top if isinstance(top, dict) else {}
    described = top.get("properties")
    named = dict(described) if isinstance(described, dict) else {}
    listed = top.get("required")
    required = (
        [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    )
    for name in required:
        named.setdefault(name, True)
    whole = _rebased(root)
    for name, schema in named.items():
        document = _rebased(schema) if isinstance(schema, dict) else {} if schema else {"enum": []}
        document.pop("$defs", None)  # references point into those of the parameters
        if any("$ref" in part for _, part in subschemas(document)):
            document["$defs"] = {_ROOT: whole}
        yield Property(name, name in required, schema, document)


def _rebased(schema: Any) -> Any:
    """The schema with its local references below the name of the whole schema."""
    if isinstance(schema, list):
        return [_rebased(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {
        keyword: value if keyword in _VALUES else _rebased(value)
        for keyword, value in schema.items()
    }
    target = schema.get("$ref")
    if isinstance(target, str) and target.startswith("#"):
        changed["$ref"] = f"#/$defs/{_ROOT}{target[1:]}"
    return changed
