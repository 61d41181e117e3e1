"""Numbers in the schemas of requests: invalid ones are a 400 with the keyword and its path."""

import math
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.gateway_app import AppMaker
from support.scripted_engine import replay
from taco_gateway.text.grammar.canonical import ConstraintError, canonical_grammar
from taco_gateway.text.grammar.schema_numbers import invalid_number
from taco_gateway.text.grammar.validation import check_grammar

CHAT = "/v1/chat/completions"
HELLO: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]
TEMPLATE = "{% for t in tools %}{{ t | tojson }}{% endfor %}{{ messages[0].content }}"
COUNTS = [f"{bound}{name}" for bound in ("min", "max")
          for name in ("Length", "Items", "Properties", "Contains")]  # fmt: skip
BOUNDS = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]
VALUES = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.integers() | st.text(max_size=3)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([-1.0, -0.0, 0.0, 1.0, 2.5, 1e300, 10**400, [], [1], {}])
)  # fmt: skip


@given(keyword=st.sampled_from(["multipleOf", *COUNTS, *BOUNDS]), value=VALUES)
def test_the_meta_schemas_agree(keyword: str, value: Any) -> None:
    schema = {keyword: value}
    if keyword.startswith("exclusive"):  # draft 4 has switches, which need a bound
        draft4 = jsonschema.Draft4Validator(jsonschema.Draft4Validator.META_SCHEMA)
        is_valid = draft4.is_valid({**schema, "minimum": 1, "maximum": 2})
    else:
        is_valid = False
    meta_schema = jsonschema.Draft202012Validator.META_SCHEMA
    is_valid = is_valid or jsonschema.Draft202012Validator(meta_schema).is_valid(schema)
    assert (invalid_number(schema) is None) == is_valid


@pytest.mark.parametrize("keyword", ["multipleOf", *COUNTS, *BOUNDS])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_keyword_takes_what_is_not_finite(keyword: str, value: float) -> None:
    assert invalid_number({keyword: value}) is not None


INVALID: list[tuple[dict[str, Any], str]] = [
    ({"type": "number", "multipleOf": -1}, "'multipleOf': must be a number above 0, got -1"),
    ({"type": "number", "multipleOf": 0}, "'multipleOf': must be a number above 0, got 0"),
    ({"type": "string", "minLength": -1}, "'minLength': must be an integer, 0 or more, got -1"),
    ({"type": "string", "maxLength": 2.5}, "'maxLength': must be an integer, 0 or more, got 2.5"),
    ({"type": "array", "minItems": "3"}, "'minItems': must be an integer, 0 or more, got \"3\""),
    ({"type": "object", "maxProperties": None}, "'maxProperties': must be an integer"),
    ({"type": "null", "minItems": -2}, "'minItems': must be an integer"),
    ({"type": "number", "minimum": [1]}, "'minimum': must be a number, got [1]"),
    ({"type": "number", "exclusiveMaximum": "a"}, "'exclusiveMaximum': must be a number"),
    ({"type": "string", "maxLength": 10**30}, "'maxLength': "),  # valid, but not for the library
]


def requests_with(schema: dict[str, Any]) -> list[tuple[dict[str, Any], str, str]]:
    """Bodies with a schema in a property, the field of each, and the place in its errors."""
    whole = {"type": "object", "properties": {"a/b": {"items": {"anyOf": [schema]}}}}
    pointer = "/properties/a~1b/items/anyOf/0: keyword "
    tag = {"begin": "<a>", "schema": whole, "end": "</a>"}
    function = {"name": "f", "parameters": whole}
    tool = {"type": "function", "function": function}
    strict = {"type": "function", "function": {**function, "strict": True}}
    return [
        ({"guided_json": whole}, "guided_json", pointer),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": whole}}},
         "response_format", pointer),
        ({"response_format": {"type": "structural_tag", "structures": [tag], "triggers": ["<"]}},
         "response_format", pointer),
        ({"tools": [tool], "tool_choice": "required"}, "tools", pointer),
        ({"tools": [strict]}, "tools", f"tools[0].function.parameters{pointer}"),
    ]  # fmt: skip


@pytest.mark.parametrize(("schema", "words"), INVALID)
async def test_an_invalid_number_is_a_400(
    make_app: AppMaker, schema: dict[str, Any], words: str
) -> None:
    app = make_app(
        replay([50]),
        chat_template=TEMPLATE,
        enable_auto_tool_choice=True,
        tool_call_parser="hermes",
    )
    for fields, param, place in requests_with(schema):
        response = await app.http.post(CHAT, json={"messages": HELLO, **fields})
        error = response.json()["error"]
        assert response.status_code == 400, fields
        assert (error["param"], error["code"]) == (param, "invalid_grammar")
        assert place in error["message"]
        assert words in error["message"]
    assert not app.engine.requests


@pytest.mark.parametrize("parser", ["qwen3_coder", "pythonic"])
async def test_formats_that_write_each_property(make_app: AppMaker, parser: str) -> None:
    app = make_app(
        replay([50]), chat_template=TEMPLATE, enable_auto_tool_choice=True, tool_call_parser=parser
    )
    properties: dict[str, Any] = {"c": {"type": "string", "minLength": -1}}
    parameters = {"type": "object", "properties": properties}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    body: dict[str, Any] = {"messages": HELLO, "tools": [tool], "tool_choice": "required"}

    async def message(status: int, **fields: Any) -> str:
        response = await app.http.post(CHAT, json={**body, **fields})
        assert response.status_code == status, response.text
        return response.text

    place = "tools[0].function.parameters/properties/c: keyword 'minLength'"
    assert place in await message(400)
    # Without a grammar for the arguments the schema is for the model only.
    await message(200, tool_choice="auto", parallel_tool_calls=False)
    parameters["components"] = {"count": properties["c"]}
    properties["c"] = {"$ref": "#/components/count"}
    assert "minLength" in await message(400)
    # An empty language is no invalid schema.
    properties["c"] = {"type": "string", "minLength": 3, "maxLength": 1}
    parameters["required"] = ["c"]
    assert re.search(r"tools\[0\]\S+/properties/c: no (valid )?value", await message(400))
    properties["c"] = {"type": "string", "minLength": 2.0, "maxLength": 2.0}
    await message(200)


EMPTY: list[dict[str, Any]] = [
    {"type": "string", "minLength": 3, "maxLength": 1},
    {"type": "array", "minItems": 3, "maxItems": 1},
    {"type": "object", "minProperties": 3, "maxProperties": 1},
    {"type": "number", "minimum": 5, "maximum": 1},
]


@pytest.mark.parametrize("schema", EMPTY)
def test_bounds_that_exclude_each_other_are_an_empty_language(schema: dict[str, Any]) -> None:
    with pytest.raises(ConstraintError, match=r"^no value is valid: "):
        check_grammar("json", schema, canonical_grammar("json", schema, {}))
    either = {"anyOf": [schema, {"type": "null"}]}
    check_grammar("json", either, canonical_grammar("json", either, {}))


@pytest.mark.parametrize("schema", ['{"enum": [NaN]}', {"enum": [math.inf]}])
def test_values_that_are_not_json(schema: Any) -> None:
    with pytest.raises(ConstraintError, match="NaN and Infinity are not JSON"):
        canonical_grammar("json", schema, {})


def test_an_integer_may_be_written_with_a_fraction_of_zero() -> None:
    written = {"type": "string", "minLength": 2.0, "maxLength": 3.0}
    same = {"type": "string", "minLength": 2, "maxLength": 3}
    assert canonical_grammar("json", written, {}) == canonical_grammar("json", same, {})
    check_grammar("json", written, canonical_grammar("json", written, {}))
