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
        schema = _at(root, target)
    return None


def _at(root: Any, pointer: str) -> Any:
    """The part of a document at a JSON pointer (RFC 6901) in a URI's fragment."""
    if pointer != "#" and not pointer.startswith("#/"):
        return None
    found = root
    for part in pointer[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found
