"""Schemas that only infinite values satisfy are found, and no others."""

from typing import Any

import pytest

from taco_gateway.text.grammar.canonical import ConstraintError, canonical_grammar
from taco_gateway.text.grammar.endless_schemas import is_endless
from taco_gateway.text.grammar.validation import check_grammar

SELF: dict[str, Any] = {"$ref": "#"}
STRING = {"type": "string"}


def nested(**fields: Any) -> dict[str, Any]:
    return {"type": "object", **fields}


ENDLESS: list[Any] = [
    SELF,
    nested(properties={"a": SELF}, required=["a"]),
    nested(additionalProperties=SELF, required=["a"]),
    {"type": "array", "items": SELF, "minItems": 1},
    {"type": "array", "prefixItems": [STRING, SELF], "minItems": 2},
    {"anyOf": [SELF, nested(properties={"x": SELF}, required=["x"])]},
    {"allOf": [STRING, SELF]},
    {
        "$defs": {
            "a/b": nested(properties={"c": {"$ref": "#/$defs/c"}}, required=["c"]),
            "c": {"type": ["array"], "items": {"$ref": "#/$defs/a~1b"}, "minItems": 3},
        },
        "$ref": "#/$defs/a~1b",
    },
]
FINITE: list[Any] = [
    True,
    {},
    STRING,
    nested(properties={"a": SELF}),
    nested(properties={"a": {"anyOf": [SELF, {"type": "null"}]}}, required=["a"]),
    nested(properties={"a": {"type": ["array", "null"], "items": SELF}}, required=["a"]),
    nested(required=["a"]),
    {"type": "array", "items": SELF},
    {"type": "array", "prefixItems": [STRING, SELF], "minItems": 1},
    {"anyOf": [SELF, STRING]},
    {"const": {"a": 1}, "properties": {"a": SELF}, "required": ["a"]},
    {"properties": {"a": SELF}, "required": ["a"]},  # a number is valid
    {"$defs": {"x": {"$anchor": "y", **STRING}}, "$ref": "#y"},
    {"$defs": {"x": STRING}, "$ref": "#/$defs/missing"},
    {"$defs": [1], "$ref": "#/$defs/5"},
]


@pytest.mark.parametrize("schema", ENDLESS)
def test_an_endless_schema_is_found(schema: Any) -> None:
    assert is_endless(schema)
    with pytest.raises(ConstraintError, match=r"no value is valid|circular references"):
        check_grammar("json", schema, canonical_grammar("json", schema, {}))


@pytest.mark.parametrize("schema", FINITE)
def test_other_schemas_are_not(schema: Any) -> None:
    assert not is_endless(schema)


def test_a_long_chain_takes_little_time() -> None:
    count = 3000
    parts: dict[str, Any] = {
        f"d{i}": nested(properties={"n": {"$ref": f"#/$defs/d{i + 1}"}}, required=["n"])
        for i in range(count)
    }
    last: dict[str, Any]
    for last, expected in ((STRING, False), ({"$ref": "#/$defs/d0"}, True)):
        listed = {**parts, f"d{count}": last}
        backwards = dict(reversed(listed.items()))
        assert is_endless({"$defs": listed, "$ref": "#/$defs/d0"}) == expected
        assert is_endless({"$defs": backwards, "$ref": "#/$defs/d0"}) == expected
