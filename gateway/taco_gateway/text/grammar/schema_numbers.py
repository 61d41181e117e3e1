"""Checks the numbers in a JSON schema, and writes them so that llguidance enforces them.

They are checked as the meta-schemas of draft 4 to 2020-12 do. llguidance reads numbers as 64-bit
floats, and writes the whole part of a bound with 64-bit integers.
"""

import json
import math
from collections.abc import Collection, Iterator, Mapping
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
_LOWER = ("minimum", "exclusiveMinimum")
_UPPER = ("maximum", "exclusiveMaximum")
_BOUNDS = frozenset({*_LOWER, *_UPPER})
_EXCLUSIVE = frozenset({"exclusiveMaximum", "exclusiveMinimum"})
_MULTIPLE = "multipleOf"
_NUMBERS = _COUNTS | _BOUNDS | {_MULTIPLE}
_CONSTANTS = ("const", "enum")
_MAX_SHOWN_CHARS = 50
_INTEGERS_END = 2**63
# The first bound away from zero for which the next power of ten is beyond the integers' end.
_LONE_END = 10**18
# In place of the first number above 0: the expression of a smaller bound is nested too deeply.
_ABOVE_ZERO = 1e-64
_FLOATS_APART = 4  # llguidance may read a number of 17 digits as the float beside it


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


def normalize_numbers(schema: dict[str, Any]) -> None:
    """Write the numbers of a valid schema in the one form that llguidance reads everywhere.

    2.0 is an integer in JSON schema, but no count for llguidance. Draft 4's switches, such as
    `"exclusiveMinimum": true`, become bounds.
    """
    for keyword in schema.keys() & _COUNTS:
        schema[keyword] = int(schema[keyword])
    for inclusive, exclusive in (_LOWER, _UPPER):
        if isinstance(schema.get(exclusive), bool):
            is_exclusive = schema.pop(exclusive)
            if is_exclusive and inclusive in schema:
                schema[exclusive] = schema.pop(inclusive)


def unenforced_numbers(schema: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The keywords of a normalized schema whose numbers llguidance changes, and what is wrong."""
    for keyword in _CONSTANTS:
        problems = map(_problem, _numbers_in(schema.get(keyword)))
        if problem := next(filter(None, problems), ""):
            yield keyword, problem
    if _MULTIPLE in schema and (problem := _problem(schema[_MULTIPLE])):
        yield _MULTIPLE, problem
    for keyword in sorted(schema.keys() & _BOUNDS):
        if problem := _problem_of_bound(schema, keyword):
            yield keyword, problem


def close_whole_bounds(schemas: Collection[dict[str, Any]]) -> None:
    """Replace exclusive bounds that llguidance would take as inclusive.

    These are whole numbers whose other bound is less than 1 away, in the direction away from zero.
    The other one may be in any schema, because llguidance intersects schemas.

    Args:
        schemas: all parts of one schema, normalized and with numbers that are enforced.
    """
    floors = {math.floor(bound) for bound in _fractions(schemas, _UPPER)}
    ceilings = {math.ceil(bound) for bound in _fractions(schemas, _LOWER)}
    for schema in schemas:
        if (bound := schema.get("exclusiveMinimum")) in floors and bound >= 0:
            del schema["exclusiveMinimum"]
            first = bound + _step(bound)
            schema["minimum"] = max(first, schema.get("minimum", first))
        if (bound := schema.get("exclusiveMaximum")) in ceilings and bound <= 0:
            del schema["exclusiveMaximum"]
            last = bound - _step(bound)
            schema["maximum"] = min(last, schema.get("maximum", last))


def _step(bound: float) -> float:
    """A distance from a bound to a number that llguidance does not read as the bound."""
    return _FLOATS_APART * math.ulp(bound) if bound else _ABOVE_ZERO


def _fractions(schemas: Collection[dict[str, Any]], side: tuple[str, ...]) -> Iterator[float]:
    """The bounds on one side that are no whole numbers."""
    for schema in schemas:
        for keyword in side:
            if schema.get(keyword, 0) % 1:
                yield schema[keyword]


def _numbers_in(value: Any) -> Iterator[float]:
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _numbers_in(part)
    elif _is_number(value) and (isinstance(value, int) or math.isfinite(value)):
        yield value


def _problem(number: float) -> str:
    """Why llguidance would write another number; empty: it does not."""
    if abs(number) >= _INTEGERS_END:
        return f"numbers must be above -2^63 and below 2^63, got {_shown(number)}"
    if number != float(number):
        return f"{number} is no 64-bit float, so it cannot be enforced"
    return ""


def _problem_of_bound(schema: Mapping[str, Any], keyword: str) -> str:
    """Why llguidance would enforce another bound; empty: it does not."""
    bound = schema[keyword]
    if keyword == "maximum" and bound == _INTEGERS_END - 1 and _has_only_integers(schema):
        return ""  # llguidance rounds it up, and then to the largest integer
    if problem := _problem(bound):
        return problem
    side, others, inwards = (_LOWER, _UPPER, 1) if keyword in _LOWER else (_UPPER, _LOWER, -1)
    first = int(bound) + inwards
    if keyword in _EXCLUSIVE and first != float(first):
        return f"{first} is no 64-bit float, so {_shown(bound)} cannot be enforced: use {side[0]}"
    if bound * inwards >= _LONE_END and not schema.keys() & set(others):
        return f"{_shown(bound)} cannot be enforced without a {others[0]} beside it"
    return ""


def _has_only_integers(schema: Mapping[str, Any]) -> bool:
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    return "integer" in kinds and "number" not in kinds


def _expected(keyword: str, value: Any) -> str:
    """What the keyword's value has to be; empty: it is that."""
    is_finite = _is_number(value) and (isinstance(value, int) or math.isfinite(value))
    if keyword in _COUNTS:
        return "" if is_finite and value >= 0 and value == int(value) else "an integer, 0 or more"
    if keyword == _MULTIPLE:
        return "" if is_finite and value > 0 else "a number above 0"
    is_switch = keyword in _EXCLUSIVE and isinstance(value, bool)  # draft 4
    return "" if is_finite or is_switch else "a number"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}…"
