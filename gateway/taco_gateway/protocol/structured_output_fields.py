"""Request fields that constrain the text of an answer: OpenAI's, and both generations of vLLM's."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, Field

from taco_proto.errors import InvalidParameterError
from taco_proto.structured_outputs import PARAM, StructuredOutputsParams, backend_options

_GUIDED = ("json", "regex", "choice", "grammar")
_OF_JSON = ("json", "json_object")
_BACKEND = "guided_decoding_backend"
_PATTERN = "guided_whitespace_pattern"


class ConstraintFields(BaseModel):
    """vLLM's fields. An empty value constrains nothing."""

    structured_outputs: Any = Field(
        default=None,
        description="object with one of json, regex, choice, grammar, json_object, structural_tag",
    )
    guided_json: Any = Field(default=None, description="JSON schema, an object or a string")
    guided_regex: Any = Field(default=None, description="regular expression")
    guided_choice: Any = Field(default=None, description="list of strings")
    guided_grammar: Any = Field(default=None, description="grammar in Lark or GBNF notation")
    guided_whitespace_pattern: str | None = Field(
        default=None, description="regular expression of the whitespace in JSON"
    )
    guided_decoding_backend: Any = Field(
        default=None,
        description="`auto`, `guidance`, `xgrammar`, `outlines` or `lm-format-enforcer`",
    )


class StructuredOutputFields(ConstraintFields):
    """At most one field may constrain the text."""

    response_format: Any = Field(
        default=None,
        description="`text`, `json_object` (may have a `schema`), `json_schema` with `{name, "
        "schema, strict}`, or `structural_tag`",
    )

    def constraint(self) -> StructuredOutputsParams | None:
        """The constraint on the text; None: free text.

        Raises:
            InvalidParameterError: a field is invalid, or two exclude each other.
        """
        names = self._constraint_names()
        options = backend_options(self.guided_decoding_backend, _BACKEND, _BACKEND)
        if len(names) > 1:
            raise InvalidParameterError(
                f"{names[0]} and {names[1]} exclude each other: give one constraint.", names[1]
            )
        if not names:
            return None
        try:
            constraint = self._constraint(names[0])
            return self._with_options(constraint, options)
        except InvalidParameterError as error:
            if error.param == PARAM:
                error.param = names[0]
            raise

    @property
    def has_constraint(self) -> bool:
        """A field constrains the text."""
        return bool(self._constraint_names())

    @property
    def constraint_name(self) -> str:
        """The field with the constraint, which errors name."""
        return next(iter(self._constraint_names()), PARAM)

    def _constraint_names(self) -> list[str]:
        names = ["response_format", PARAM, *(f"guided_{kind}" for kind in _GUIDED)]
        given = [name for name in names if getattr(self, name) not in (None, False, "", [], {})]
        if _kind(self.response_format) == "text":
            given.remove("response_format")
        return given

    def _constraint(self, name: str) -> StructuredOutputsParams:
        value = getattr(self, name)
        if name == "response_format":
            return _of_response_format(value)
        if name == PARAM:
            if not isinstance(value, Mapping):
                raise InvalidParameterError(f"{PARAM} must be an object.", PARAM)
            return StructuredOutputsParams.from_fields(value)
        return StructuredOutputsParams.from_fields({name.removeprefix("guided_"): value})

    def _with_options(
        self, constraint: StructuredOutputsParams, options: Sequence[str]
    ) -> StructuredOutputsParams:
        """The constraint with the options of the older fields.

        Raises:
            InvalidParameterError: an option is invalid, or contradicts the constraint's own.
        """
        changes: dict[str, Any] = dict.fromkeys(options, True)
        pattern = self.guided_whitespace_pattern or None
        if pattern is not None and constraint.kind in _OF_JSON:
            if constraint.whitespace_pattern is not None:
                raise InvalidParameterError(
                    f"{_PATTERN} and whitespace_pattern exclude each other.", _PATTERN
                )
            changes["whitespace_pattern"] = pattern
        return replace(constraint, **changes)


def _kind(response_format: Any) -> object:
    return response_format.get("type") if isinstance(response_format, Mapping) else None


def _of_response_format(value: Any) -> StructuredOutputsParams:
    kind = _kind(value)
    if kind == "json_object":  # some servers take a schema with it
        schema = value.get("schema") or None
        return StructuredOutputsParams(json=schema, json_object=True if schema is None else None)
    if kind == "structural_tag":
        return StructuredOutputsParams(structural_tag=value)
    if kind != "json_schema":
        raise InvalidParameterError(
            "response_format.type must be text, json_object, json_schema or structural_tag.",
            "response_format",
        )
    described = value.get("json_schema")
    schema = described.get("schema") if isinstance(described, Mapping) else None
    if schema is None:
        raise InvalidParameterError(
            "response_format.json_schema.schema is missing.", "response_format"
        )
    return StructuredOutputsParams(json=schema)
