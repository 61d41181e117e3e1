"""Constraints on the text of an answer, with vLLM's names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from taco_proto.errors import InvalidParameterError

PARAM = "structured_outputs"
BACKENDS = ("auto", "guidance", "xgrammar", "outlines", "lm-format-enforcer")
_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
# Options that vLLM 0.8 takes behind the name of a back end, such as
# `xgrammar:disable-any-whitespace`.
_BACKEND_OPTIONS = ("no-fallback", "disable-any-whitespace", "disable-additional-properties")


@dataclass(frozen=True, slots=True)
class StructuredOutputsParams:
    """One constraint on the text of an answer.

    Attributes:
        json: a JSON schema: a string, a mapping or a pydantic model.
        regex: a regular expression that the whole text matches.
        choice: the texts to choose from.
        grammar: a grammar in Lark's or in llama.cpp's (GBNF) notation.
        json_object: any JSON object.
        structural_tag: free text in which triggers begin constrained parts: an object or its JSON
            text, with `structures` and `triggers`, or with a `format`.
        disable_any_whitespace: JSON has no whitespace between its tokens.
        disable_additional_properties: objects have only the properties that the schema names.
        whitespace_pattern: a regular expression of the whitespace between tokens of JSON; None:
            at most 20 whitespace characters.
        disable_fallback: accepted, without effect: one engine serves all constraints.

    Raises:
        InvalidParameterError: there is no constraint, more than one, or one of the wrong type.
    """

    json: str | Mapping[str, Any] | bool | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    disable_fallback: bool = False
    structural_tag: str | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        schema_of = getattr(self.json, "model_json_schema", None)
        if schema_of is not None:
            object.__setattr__(self, "json", schema_of())
        kinds = self._given()
        if len(kinds) != 1:
            found = " and ".join(kinds) or "none"
            raise InvalidParameterError(
                f"give exactly one of {', '.join(_KINDS)}; got {found}", PARAM
            )
        for kind, value in kinds.items():
            _check_type(kind, value)
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise InvalidParameterError(f"{name} must be true or false", PARAM)
        if self.whitespace_pattern is not None:
            _check_type("whitespace_pattern", self.whitespace_pattern)
            if self.disable_any_whitespace:
                raise InvalidParameterError(
                    "whitespace_pattern and disable_any_whitespace exclude each other", PARAM
                )

    @classmethod
    def from_fields(cls, given: Mapping[str, Any]) -> "StructuredOutputsParams":
        """Raises:
        InvalidParameterError: a field is unknown, or the constraint is invalid.
        """
        values = {name: value for name, value in given.items() if value is not None}
        if unknown := sorted(values.keys() - {field.name for field in fields(cls)}):
            raise InvalidParameterError(f"{PARAM}.{unknown[0]} is not supported", PARAM)
        return cls(**values)

    @property
    def kind(self) -> str:
        """The name of the field that is set."""
        return next(iter(self._given()))

    @property
    def value(self) -> Any:
        """The value of the field that is set."""
        return next(iter(self._given().values()))

    def _given(self) -> dict[str, Any]:
        values = {
            "json": self.json,
            "regex": self.regex,
            "choice": self.choice,
            "grammar": self.grammar,
            "json_object": self.json_object or None,
            "structural_tag": self.structural_tag,
        }
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class GuidedDecodingParams:
    """The older form of `StructuredOutputsParams`.

    Attributes:
        backend: any of vLLM's back ends; one engine serves them all. Options may follow its name,
            such as `xgrammar:disable-any-whitespace`.
        disable_fallback: accepted, without effect.

    Raises:
        InvalidParameterError: the back end is unknown.
    """

    json: str | Mapping[str, Any] | bool | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    backend: str | None = None
    whitespace_pattern: str | None = None
    disable_fallback: bool = False
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False

    def __post_init__(self) -> None:
        for name in backend_options(self.backend, "backend", "guided_decoding"):
            object.__setattr__(self, name, True)

    @classmethod
    def from_optional(cls, **given: Any) -> "GuidedDecodingParams | None":
        """The parameters; None if no argument is given, as in vLLM.

        Args:
            given: the fields of this class.
        """
        values = {name: value for name, value in given.items() if value is not None}
        return cls(**values) if values else None

    def constraint(self) -> StructuredOutputsParams:
        """Raises InvalidParameterError as `StructuredOutputsParams` does."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        del values["backend"]
        return StructuredOutputsParams(**values)


def backend_options(backend: Any, name: str, param: str) -> list[str]:
    """The fields of `StructuredOutputsParams` that the name of a back end sets.

    Args:
        backend: `NAME` or `NAME:OPTION,OPTION`; None: no back end is named.
        name: of the argument, for errors.
        param: the field that errors name.

    Raises:
        InvalidParameterError: the back end or an option is unknown.
    """
    if backend is None:
        return []
    chosen, _, listed = backend.partition(":") if isinstance(backend, str) else ("", "", "")
    if chosen not in BACKENDS:
        raise InvalidParameterError(
            f"{name} must be one of {', '.join(BACKENDS)}, got {str(backend)[:100]!r}", param
        )
    options = [option for option in listed.split(",") if option]
    for option in options:
        if option not in _BACKEND_OPTIONS:
            raise InvalidParameterError(
                f"the options of {name} are {', '.join(_BACKEND_OPTIONS)}, got {option[:100]!r}",
                param,
            )
    return [option.replace("no-", "disable-").replace("-", "_") for option in options]


_SWITCHES = ("disable_any_whitespace", "disable_additional_properties", "disable_fallback")
_TYPES: Mapping[str, tuple[type, ...]] = {
    "json": (str, Mapping, bool),
    "json_object": (bool,),
    "structural_tag": (str, Mapping),
    "choice": (list, tuple),
}


def _check_type(name: str, value: Any) -> None:
    if type(value) not in _TYPES.get(name, (str,)) and not (
        name in ("json", "structural_tag") and isinstance(value, Mapping)
    ):
        raise InvalidParameterError(f"{name} has the wrong type: {type(value).__name__}", PARAM)
    if name == "choice" and not (value and all(isinstance(text, str) for text in value)):
        raise InvalidParameterError("choice must be a list of one or more strings", PARAM)
