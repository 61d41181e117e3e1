"""Prefix cache fields of Inference service requests, validated like those of HTTP."""

from typing import Any

from pydantic import BaseModel, Field, ValidationError

from taco_gateway.api_errors import as_api_error
from taco_gateway.protocol.cache_control import (
    CacheControl,
    PromptCacheFields,
    check_num_marks,
)
from taco_gateway.text.chat_template.cache_breakpoints import Breakpoint
from taco_proto import inference_pb2 as pb


class _Message(BaseModel):
    cache_control: CacheControl | None = None


class CacheFields(PromptCacheFields):
    messages: list[_Message] = Field(default=[])

    @property
    def breakpoints(self) -> list[Breakpoint]:
        """Places up to which the prompt is kept in the prefix cache, in their order."""
        marks = [(i, message.cache_control) for i, message in enumerate(self.messages)]
        places = [Breakpoint(i, None, mark.seconds) for i, mark in marks if mark is not None]
        if self.messages and self.prompt_seconds:
            places.append(Breakpoint(len(self.messages) - 1, None, self.prompt_seconds))
        return places


def cache_fields(request: pb.ChatRequest | pb.CompleteRequest) -> CacheFields:
    """Validates the prefix cache fields of a request.

    Raises:
        ApiError: 400, a value is not allowed.
        InvalidParameterError: there are too many `cache_control` marks.
    """
    given: dict[str, Any] = {
        "prompt_cache_key": request.prompt_cache_key,
        "cache_salt": request.cache_salt,
        **_mark_of(request),
    }
    if request.prompt_cache_retention:
        given["prompt_cache_retention"] = request.prompt_cache_retention
    if isinstance(request, pb.ChatRequest):
        given["messages"] = [_mark_of(message) for message in request.messages]
    try:
        fields = CacheFields.model_validate(given)
    except ValidationError as error:
        raise as_api_error(error) from None
    marks = [fields.cache_control, *(message.cache_control for message in fields.messages)]
    check_num_marks(sum(mark is not None for mark in marks))
    return fields


def _mark_of(carrier: pb.ChatRequest | pb.CompleteRequest | pb.ChatMessage) -> dict[str, Any]:
    if not carrier.HasField("cache_control"):
        return {}
    mark = carrier.cache_control
    return {"cache_control": {"type": mark.type, "ttl": mark.ttl or None}}
