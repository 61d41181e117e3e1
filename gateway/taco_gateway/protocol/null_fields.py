"""A field of a request that is null counts as absent, as with OpenAI's clients."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, model_validator


def without_nulls(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an object that count."""
    return {name: value for name, value in fields.items() if value is not None}


class NullsAreAbsent(BaseModel):
    """A schema whose fields have their defaults where they are null."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: object) -> object:
        return without_nulls(value) if isinstance(value, dict) else value
