"""References of a JSON schema into itself."""

from typing import Any

_MAX_STEPS = 16


def resolved(root: Any, schema: Any) -> Any:
    """The schema to which a chain of references leads; None: it leads nowhere.

    Args:
        root: the document into which `$ref` points.
    """
    for _ in range(_MAX_STEPS):
        target = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(target, str):
            return schema
        parts = pointer_parts(target)
        schema = None if parts is None else part_at(root, parts)
    return None


def pointer_parts(reference: Any) -> tuple[str, ...] | None:
    """The names in the JSON pointer (RFC 6901) of a `$ref`; None: it is no pointer into the same
    document."""
    if not isinstance(reference, str) or not f"{reference}/".startswith("#/"):
        return None
    names = reference[1:].split("/")[1:]
    return tuple(name.replace("~1", "/").replace("~0", "~") for name in names)


def part_at(root: Any, parts: tuple[str, ...]) -> Any:
    """The part of a document to which the names of a JSON pointer lead; None: to nothing."""
    found = root
    for key in parts:
        if isinstance(found, dict) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found
