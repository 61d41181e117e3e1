"""Request fields that chat and completions share: OpenAI's, and vLLM's extensions.

A null field counts as absent. `unsupported_fields` handles fields that are in no schema.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator

from taco_gateway.protocol.null_fields import NullsAreAbsent, without_nulls
from taco_gateway.protocol.sampling_fields import SamplingFields
from taco_gateway.protocol.structured_output_fields import StructuredOutputFields
from taco_gateway.protocol.unsupported_fields import REJECTED, check_other_fields
from taco_proto.errors import InvalidParameterError
from taco_proto.logits_processors import EXTRA_ARGS
from taco_proto.sampling_params import MAX_TOKENS, SAMPLING_FIELDS
from taco_proto.structured_outputs import PARAM


class StreamOptions(NullsAreAbsent):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerationRequest(StructuredOutputFields, SamplingFields):
    """The fields of chat that completions have too."""

    stream_options: StreamOptions | None = None

    n: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = Field(default=None, ge=0, le=MAX_TOKENS)
    prompt_logprobs: int | None = None
    detokenize: bool | None = None
    return_token_ids: bool = False

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Self:
        """Validates a JSON object.

        Raises:
            InvalidParameterError: an unsupported feature, or contradicting parameters.
            pydantic.ValidationError: a value has the wrong type.
        """
        given = without_nulls(body)
        check_other_fields(given, REJECTED.keys() - cls.model_fields)
        request = cls.model_validate(given)
        if request.stream_options is not None and not request.stream:
            raise InvalidParameterError(
                "stream_options is only allowed when stream is true.", "stream_options"
            )
        if request.stream and request.prompt_logprobs is not None:
            raise InvalidParameterError("prompt_logprobs cannot be streamed.", "prompt_logprobs")
        if request.stream and request.use_beam_search:
            raise InvalidParameterError(
                "use_beam_search cannot be streamed: its texts are known at the end of the search.",
                "stream",
            )
        if request.stream and (request.best_of or 0) > (request.n or 1):
            raise InvalidParameterError("best_of above n cannot be streamed.", "best_of")
        return request

    @property
    def num_choices(self) -> int:
        """Number of sequences to return for each prompt."""
        return 1 if self.n is None else self.n

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        """Whether every chunk of a stream has the usage so far."""
        return self.stream_options is not None and self.stream_options.continuous_usage_stats

    @property
    def asked_max_tokens(self) -> int | None:
        """The token limit of the client: `max_completion_tokens`, or the older `max_tokens`."""
        if self.max_completion_tokens is None:
            return self.max_tokens
        return self.max_completion_tokens

    def client_names(self) -> dict[str, str]:
        """Client's names of engine parameters, where the names differ."""
        names = {PARAM: self.constraint_name, EXTRA_ARGS: "vllm_xargs"}
        if self.max_completion_tokens is not None:
            names["max_tokens"] = "max_completion_tokens"
        return names

    @contextmanager
    def errors_with_client_names(self) -> Iterator[None]:
        """Renames the parameter of an error of the engine to the client's name.

        A message that begins with the name of a sampling parameter begins with the client's name.
        """
        try:
            yield
        except InvalidParameterError as error:
            own = error.param or ""
            if (name := self.client_names().get(own)) is not None:
                if own in SAMPLING_FIELDS:
                    error.args = (re.sub(rf"^{own}\b", name, str(error)),)
                error.param = name
            raise

    def sampling_values(self) -> dict[str, Any]:
        """The sampling parameters of the client, by their names in `SamplingParams`."""
        own_meaning = {"logprobs", "max_tokens"}  # differs between chat and completions
        own_meaning.add(PARAM)  # other fields give it too
        values: dict[str, Any] = {
            name: value
            for name in SAMPLING_FIELDS
            if name not in own_meaning and (value := getattr(self, name, None)) is not None
        }
        if (constraint := self.constraint()) is not None:
            values[PARAM] = constraint
        if self.vllm_xargs:
            values[EXTRA_ARGS] = self.vllm_xargs
        return values

    @field_validator("early_stopping", mode="before")
    @classmethod
    def _one_of_three(cls, value: object) -> object:
        if not isinstance(value, bool) and value != "never":
            raise ValueError('must be true, false or "never"')
        return value
