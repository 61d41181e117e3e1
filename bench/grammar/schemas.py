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


def endless_schema(num_records: int = 500) -> Json:
    """An array of at least `num_records` records of short strings, numbers and lists: so many that
    no answer of a benchmark finishes it.
    """
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
    return {"type": "array", "items": record, "minItems": num_records}
