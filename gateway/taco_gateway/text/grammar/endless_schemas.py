"""Finds schemas whose every value is infinitely deep, such as an object that requires itself.

A model would write until its length ends. llguidance compiles such a schema: each beginning of a
value has a continuation.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from taco_gateway.text.grammar.canonical import subschemas

_VALUES = ("const", "enum")


def is_endless(schema: Any) -> bool:
    """Whether no finite value is valid. False where keywords leave it open."""
    parts = [part for _, part in subschemas(schema)]
    known = _Finite(schema, parts)
    if not isinstance(schema, dict) or not any("$ref" in part for part in parts):
        return False
    # The least fixed point: a part is finite if the parts that it needs are. Parts come before what
    # they need, or behind it: the direction changes with each pass.
    num_known = -1
    while id(schema) not in known.ids and len(known.ids) > num_known:
        num_known = len(known.ids)
        for part in reversed(parts):
            if known.follows(part):
                known.ids.add(id(part))
        parts = [part for part in reversed(parts) if id(part) not in known.ids]
    return id(schema) not in known.ids


class _Finite:
    """Schemas that are known to have a finite value.

    Attributes:
        ids: of the objects of these schemas. The target of a reference must be among them.
    """

    def __init__(self, root: Any, parts: Sequence[Any]) -> None:
        self._root = root
        self._part_ids = set(map(id, parts))
        self.ids: set[int] = set()

    def has(self, schema: Any) -> bool:
        return not isinstance(schema, dict) or id(schema) in self.ids or self.follows(schema)

    def follows(self, schema: Mapping[str, Any]) -> bool:
        """Whether a schema has a finite value if those in `ids` do."""
        if any(name in schema for name in _VALUES):
            return True
        if "$ref" in schema:
            target = self._target(schema["$ref"])
            if target is not None and id(target) not in self.ids:
                return False
        if not all(map(self.has, _list(schema, "allOf"))):
            return False
        for name in ("anyOf", "oneOf"):
            if name in schema and not any(map(self.has, _list(schema, name))):
                return False
        kinds = schema.get("type")
        kinds = kinds if isinstance(kinds, list) else [kinds]
        return any(self._kind_follows(kind, schema) for kind in kinds)

    def _kind_follows(self, kind: Any, schema: Mapping[str, Any]) -> bool:
        if kind == "object":
            properties, others = schema.get("properties"), schema.get("additionalProperties")
            named = properties if isinstance(properties, dict) else {}
            return all(self.has(named.get(name, others)) for name in _list(schema, "required"))
        if kind == "array":
            count, items = schema.get("minItems"), schema.get("items")
            first = _list(schema, "prefixItems") or (items if isinstance(items, list) else [])
            num_items = count if isinstance(count, int) else 0
            needed = [*first[:num_items], *([items] if num_items > len(first) else [])]
            return all(map(self.has, needed))
        return True

    def _target(self, reference: Any) -> Any:
        """The object that a plain pointer names; None for other references."""
        if not isinstance(reference, str) or not f"{reference}/".startswith("#/"):
            return None
        found = self._root
        for part in reference.removeprefix("#").split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict):
                found = found.get(key)
            elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            else:
                return None
        return found if id(found) in self._part_ids else None


def _list(schema: Mapping[str, Any], name: str) -> list[Any]:
    value = schema.get(name)
    return value if isinstance(value, list) else []
