"""JSON schemas for the benchmarks. Imports nothing: drivers run in the environments of peers."""

from typing import Any

Json = dict[str, Any]


def wide_schema(num_properties: int, salt: str = "") -> Json:
    """An object of strings and integers; another salt makes other names."""
    names = [f"property_{salt}{number}" for number in range(num_properties)]
    kinds: list[Json] = [{"type": "string", "maxLength": 30}, {"type": "integer"}]
    return {
        "type": "object",
        "properties": {name: kinds[number % 2] for number, name in enumerate(names)},
        "required": names[:10],
        "additionalProperties": False,
    }


def endless_schema() -> Json:
    """An array of records that no answer of a benchmark finishes: short strings, numbers, lists."""
    record: Json = {
        "type": "object",
        "properties": {
            "id": {"type": "integer", "minimum": 0, "maximum": 99999},
            "title": {"type": "string", "maxLength": 60},
            "state": {"enum": ["open", "closed", "in review", "blocked"]},
            "labels": {
                "type": "array",
                "items": {"type": "string", "maxLength": 20},
                "maxItems": 5,
            },
            "comment": {"type": "string", "maxLength": 200},
        },
        "required": ["id", "title", "state", "labels", "comment"],
        "additionalProperties": False,
    }
    return {"type": "array", "items": record, "minItems": 500}


def records_schema(num_records: int) -> Json:
    """An array of at least `num_records` records as programs exchange them: short values.

    A model with random weights ends no string before its `maxLength`, so that is the length of a
    usual value.
    """
    properties: Json = {
        "order_id": {"type": "integer", "minimum": 10000, "maximum": 99999},
        "customer_name": {"type": "string", "maxLength": 20},
        "status": {"enum": ["pending", "paid", "shipped", "delivered", "cancelled"]},
        "created_at": {"type": "string", "pattern": "^20[0-9]{2}-[01][0-9]-[0-3][0-9]$"},
        "total_cents": {"type": "integer", "minimum": 0, "maximum": 999999},
        "is_gift": {"type": "boolean"},
        "shipping_city": {"type": "string", "maxLength": 16},
    }
    order: Json = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "array", "items": order, "minItems": num_records}
