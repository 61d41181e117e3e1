"""Request schemas by name, so that the parser process can select one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from taco_gateway.protocol.chat_request import ChatCompletionRequest
from taco_gateway.protocol.completion_request import CompletionRequest
from taco_gateway.protocol.responses_api.response_request import ResponsesRequest
from taco_gateway.protocol.tokenize_requests import (
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeTextRequest,
)
from taco_proto.errors import InvalidParameterError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RequestSchema(Generic[T]):
    """The request schema of one route.

    Attributes:
        validate: turns a JSON object into a request; raises `pydantic.ValidationError` or
            `InvalidParameterError`.
    """

    name: str
    validate: Callable[[Mapping[str, Any]], T]


def _tokenize_request(body: Mapping[str, Any]) -> TokenizeTextRequest | TokenizeChatRequest:
    if body.get("messages") is None:
        return TokenizeTextRequest.from_body(body)
    if body.get("prompt") is not None:
        raise InvalidParameterError(
            "prompt and messages exclude each other: give one of them.", "messages"
        )
    return TokenizeChatRequest.from_body(body)


CHAT = RequestSchema("chat", ChatCompletionRequest.from_body)
COMPLETIONS = RequestSchema("completions", CompletionRequest.from_body)
RESPONSES = RequestSchema("responses", ResponsesRequest.from_body)
TOKENIZE = RequestSchema("tokenize", _tokenize_request)
DETOKENIZE = RequestSchema("detokenize", DetokenizeRequest.from_body)
REQUEST_SCHEMAS: Mapping[str, RequestSchema[Any]] = {
    schema.name: schema for schema in (CHAT, COMPLETIONS, RESPONSES, TOKENIZE, DETOKENIZE)
}
