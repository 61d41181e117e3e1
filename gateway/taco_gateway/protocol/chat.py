"""`POST /v1/chat/completions`: what comes in."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import Field, model_validator

from taco_gateway.protocol.cache_control import check_num_marks
from taco_gateway.protocol.conversation import Conversation
from taco_gateway.protocol.generation import MAX_TOP_LOGPROBS, GenerationRequest
from taco_gateway.text.breakpoints import Breakpoint
from taco_proto.errors import InvalidParameterError
from taco_proto.sampling_params import MAX_TOKENS


class ChatCompletionRequest(Conversation, GenerationRequest):
    max_completion_tokens: int | None = Field(default=None, ge=1, le=MAX_TOKENS)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)

    @model_validator(mode="after")
    def _check_logprobs(self) -> "ChatCompletionRequest":
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidParameterError("top_logprobs needs logprobs=true.", "top_logprobs")
        return self

    @model_validator(mode="after")
    def _check_breakpoints(self) -> "ChatCompletionRequest":
        check_num_marks(len(super().breakpoints) + (self.cache_control is not None))
        return self

    @property
    def breakpoints(self) -> list[Breakpoint]:
        marked = super().breakpoints
        if self.prompt_seconds:
            marked.append(Breakpoint(len(self.messages) - 1, None, self.prompt_seconds))
        return marked

    @contextmanager
    def errors_by_own_names(self) -> Iterator[None]:
        """Inside, a parameter that the engine refuses is named as chat clients know it."""
        names = {"prompt": "messages", "logprobs": "top_logprobs"}
        if self.max_completion_tokens is not None:
            names["max_tokens"] = "max_completion_tokens"
        try:
            yield
        except InvalidParameterError as error:
            error.param = names.get(error.param or "", error.param)
            raise

    def sampling_values(self) -> dict[str, Any]:
        values = super().sampling_values()
        # None: as many as the model's length allows.
        values["max_tokens"] = (
            self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        )
        if self.logprobs:
            values["logprobs"] = self.top_logprobs or 0
        return values
