"""The conversations that `LLM.chat` takes."""

from collections.abc import Mapping, Sequence
from typing import Any

from taco_llm.argument_checks import is_list
from taco_proto.errors import InvalidParameterError

PARAM = "messages"

Message = Mapping[str, Any]


def checked_conversations(messages: object) -> list[Sequence[Message]]:
    """The conversations of a call, which may give one or a list of them.

    Chat templates leave out content that they do not expect, without an error.

    Raises:
        InvalidParameterError: a message has no role, or no content and is not the assistant's.
    """
    if not is_list(messages):
        raise InvalidParameterError(
            f"{PARAM} must be a list of messages or of conversations, got {messages!r:.80}", PARAM
        )
    if messages and isinstance(messages[0], Mapping):
        _check_conversation(PARAM, messages)
        return [messages]
    for index, conversation in enumerate(messages):
        _check_conversation(f"{PARAM}[{index}]", conversation)
    return list(messages)


def _check_conversation(path: str, messages: object) -> None:
    if not is_list(messages):
        raise InvalidParameterError(
            f"{path} must be a list of messages, got {messages!r:.80}", PARAM
        )
    for index, message in enumerate(messages):
        _check_message(f"{path}[{index}]", message)


def _check_message(path: str, message: object) -> None:
    if not isinstance(message, Mapping):
        raise InvalidParameterError(
            f"{path} must be a mapping with role and content, got {message!r:.80}", PARAM
        )
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        raise InvalidParameterError(f"{path}.role must be a string, got {role!r:.80}", PARAM)
    if content is None and role == "assistant":
        return  # it may have called tools only
    if not isinstance(content, str) and not (is_list(content) and content):
        raise InvalidParameterError(
            f"{path}.content must be a string or a list of text parts, got {content!r:.80}", PARAM
        )
