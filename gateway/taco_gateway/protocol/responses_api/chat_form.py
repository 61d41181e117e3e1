"""The chat request that is the same as a request for a response, with errors in its names."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from taco_gateway.protocol.chat_request import ChatCompletionRequest
from taco_proto.errors import InvalidParameterError

# Fields of chat, and their names in a request for a response.
_NAMES: Mapping[str, str] = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
}
# Places at the beginning of a message: a field, and a function inside of its tool.
_FIELD = re.compile(rf"\A({'|'.join(_NAMES)})(?:\.json_schema)?\b")
_FUNCTION = re.compile(r"\A(tools\[\d+\])\.function\b")


class ChatForm(ChatCompletionRequest):
    """A chat request whose errors name the fields of the response's request."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "ChatForm":
        """Validates the fields of a chat request.

        Raises:
            InvalidParameterError: a value is not valid.
        """
        with _response_names():
            try:
                return cls.model_validate(values)
            except ValidationError as error:
                raise _first_problem(error) from None

    def client_names(self) -> dict[str, str]:
        return {engine: _NAMES.get(name, name) for engine, name in super().client_names().items()}

    @contextmanager
    def errors_with_client_names(self) -> Iterator[None]:
        with _response_names(), super().errors_with_client_names():
            yield


def _first_problem(error: ValidationError) -> InvalidParameterError:
    first = error.errors(include_url=False, include_input=False)[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InvalidParameterError):  # raised by a validator of ours
        return cause
    name = str(first["loc"][0]) if first["loc"] else None
    message = first["msg"].removeprefix("Value error, ")
    return InvalidParameterError(f"{name}: {message}" if name else message, name)


@contextmanager
def _response_names() -> Iterator[None]:
    """Renames the parameter of an error, and the field with which its message begins."""
    try:
        yield
    except InvalidParameterError as error:
        message = _FIELD.sub(lambda match: _NAMES[match[1]], str(error))
        error.args = (_FUNCTION.sub(r"\1", message),)
        error.param = _NAMES.get(error.param or "", error.param)
        raise
