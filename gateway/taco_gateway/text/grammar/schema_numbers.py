"""Checks the numbers in a JSON schema, as the meta-schemas of draft 4 to 2020-12 do."""

import json
import math
from collections.abc import Mapping
from typing import Any

_COUNTS = frozenset(
    {
        "maxContains",
        "maxItems",
        "maxLength",
        "maxProperties",
        "minContains",
        "minItems",
        "minLength",
        "minProperties",
    }
)
_EXCLUSIVE = frozenset({"exclusiveMaximum", "exclusiveMinimum"})
_BOUNDS = _EXCLUSIVE | {"maximum", "minimum"}
_MULTIPLE = "multipleOf"
_NUMBERS = _COUNTS | _BOUNDS | {_MULTIPLE}
_MAX_SHOWN_CHARS = 50


def invalid_number(schema: Mapping[str, Any]) -> tuple[str, str] | None:
    """A keyword of a schema whose value the specification forbids, and what is wrong; None: none.

    Only the schema's own keywords are checked, not those of its parts. Bounds that no value
    satisfies are valid.
    """
    for keyword in schema:
        if keyword in _NUMBERS:
            value = schema[keyword]
            if expected := _expected(keyword, value):
                return keyword, f"must be {expected}, got {_shown(value)}"
    return None


def use_integers(schema: dict[str, Any]) -> None:
    """Write the counts of a valid schema as integers: 2.0 is one in JSON schema, but not for
    llguidance."""
    for keyword in schema.keys() & _COUNTS:
        schema[keyword] = int(schema[keyword])


def _expected(keyword: str, value: Any) -> str:
    """What the keyword's value has to be; empty: it is that."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_finite = is_number and (isinstance(value, int) or math.isfinite(value))
    if keyword in _COUNTS:
        return "" if is_finite and value >= 0 and value == int(value) else "an integer, 0 or more"
    if keyword == _MULTIPLE:
        return "" if is_finite and value > 0 else "a number above 0"
    is_switch = keyword in _EXCLUSIVE and isinstance(value, bool)  # draft 4
    return "" if is_finite or is_switch else "a number"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}…"
