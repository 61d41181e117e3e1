"""Constraints as arguments of `LLM.generate`, in the form of vLLM 0.6."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypedDict

from taco_proto.errors import InvalidParameterError
from taco_proto.sampling_params import SamplingParams
from taco_proto.structured_outputs import GuidedDecodingParams

PARAM = "guided_options_request"


class LLMGuidedOptions(TypedDict, total=False):
    """A constraint as a dictionary; see `GuidedDecodingRequest`."""

    guided_json: str | Mapping[str, Any] | None
    guided_regex: str | None
    guided_choice: Sequence[str] | None
    guided_grammar: str | None
    guided_decoding_backend: str | None
    guided_whitespace_pattern: str | None
    guided_json_object: bool | None


@dataclass(frozen=True, slots=True)
class GuidedDecodingRequest:
    """A constraint on the texts of a call of `LLM.generate`. Without one the texts are free.

    Attributes:
        guided_json: a JSON schema: a string, a mapping or a pydantic model.
        guided_regex: a regular expression that the whole text matches.
        guided_choice: the texts to choose from.
        guided_grammar: a grammar in Lark's or in llama.cpp's (GBNF) notation.
        guided_decoding_backend: any of vLLM's back ends; one engine serves them all.
        guided_whitespace_pattern: a regular expression of the whitespace between tokens of JSON.
        guided_json_object: any JSON object.

    Raises:
        InvalidParameterError: there are two constraints, or one is invalid.
    """

    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: Sequence[str] | None = None
    guided_grammar: str | None = None
    guided_decoding_backend: str | None = None
    guided_whitespace_pattern: str | None = None
    guided_json_object: bool | None = None

    def __post_init__(self) -> None:
        self.constrain(SamplingParams())

    def constrain(self, params: SamplingParams) -> SamplingParams:
        """`params` with this constraint.

        Raises:
            InvalidParameterError: `params` have a constraint.
        """
        kinds = {
            "json": self.guided_json,
            "regex": self.guided_regex,
            "choice": self.guided_choice,
            "grammar": self.guided_grammar,
            "json_object": self.guided_json_object or None,
        }
        options = GuidedDecodingParams(
            **kinds,
            backend=self.guided_decoding_backend,
            whitespace_pattern=self.guided_whitespace_pattern,
        )
        if all(value is None for value in kinds.values()):
            return params
        if params.structured_outputs is not None:
            raise InvalidParameterError(
                f"{PARAM} and the constraint of sampling_params exclude each other", PARAM
            )
        return params.with_updates(structured_outputs=options.constraint())


def guided_request(options: LLMGuidedOptions | GuidedDecodingRequest) -> GuidedDecodingRequest:
    """The request of either form.

    Raises:
        InvalidParameterError: a key is unknown, or the constraint is invalid.
    """
    if isinstance(options, GuidedDecodingRequest):
        return options
    known = {field.name for field in fields(GuidedDecodingRequest)}
    if not isinstance(options, Mapping) or options.keys() - known:
        raise InvalidParameterError(
            f"{PARAM} must be a GuidedDecodingRequest or a dict with keys of "
            f"{', '.join(sorted(known))}",
            PARAM,
        )
    return GuidedDecodingRequest(**options)
