"""JSON values of arguments that a model writes as plain text, by the tool's JSON schema."""

import json
import math
from typing import Any, NoReturn

from taco_gateway.text.response.local_refs import resolved

JSON_TYPES = ("integer", "number", "boolean", "null", "object", "array", "string")
_MAX_UNIONS = 64  # schemas in a union, over all levels


def has_property(schema: Any, key: str) -> bool:
    """Whether a tool's parameters name a property."""
    return key in _properties(schema)


def value_types(schema: Any, key: str) -> tuple[str, ...]:
    """The JSON types of a property of a tool's parameters; empty: any."""
    described = _properties(schema).get(key)
    types: list[str] = []
    pending = [described]
    for _ in range(_MAX_UNIONS):
        if not pending:
            break
        part = resolved(schema, pending.pop(0))
        if not isinstance(part, dict):
            continue
        named = part.get("type", _types_of_values(part))
        types += [name for name in (named if isinstance(named, list) else [named]) if name]
        for union in ("anyOf", "oneOf", "allOf"):
            choices = part.get(union)
            pending += choices if isinstance(choices, list) else []
    return tuple(name for name in types if isinstance(name, str))


def _properties(schema: Any) -> dict[str, Any]:
    parameters = resolved(schema, schema)
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    return properties if isinstance(properties, dict) else {}


def _types_of_values(schema: dict[str, Any]) -> list[str]:
    """The types of the values that a schema lists."""
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    values = listed if isinstance(listed, list) else []
    return [name for name in JSON_TYPES if any(_fits(value, name) for value in values)]


def typed_value(text: str, types: tuple[str, ...]) -> Any:
    """The first type that the text fits; the text itself if it fits none."""
    for name in types:
        if name == "string":
            continue
        try:
            value = json.loads(text.strip(), parse_constant=_reject, parse_float=_finite)
        except (ValueError, RecursionError):
            value = {"true": True, "false": False, "none": None}.get(text.strip().lower(), text)
        if _fits(value, name):
            return int(value) if name == "integer" else value
    return text


def _fits(value: Any, name: str) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match name:
        case "integer":
            return is_number and _is_finite(value) and int(value) == value
        case "number":
            return is_number and _is_finite(value)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str)
        case _:
            return False


def _is_finite(value: float) -> bool:
    # A large integer has no float.
    return isinstance(value, int) or math.isfinite(value)


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _reject(text)


def _reject(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
