"""Limits on tool call arguments in a history: each is a JSON document inside a string.

The limits of `strict_json` do not see these documents, so they have separate limits.
"""

from collections.abc import Iterable
from typing import Any

from taco_gateway.text.chat_template.template_messages import parse_arguments
from taco_gateway.text.request_checks import MAX_TEXT_CHARS
from taco_proto.errors import InvalidParameterError

MAX_VALUES = 2**15  # of all tool calls of a conversation
MAX_DEPTH = 64


def check_arguments(calls: Iterable[str]) -> None:
    """Checks the total size of the arguments of all tool calls of a conversation.

    Raises:
        InvalidParameterError: too many characters or values, or nested too deeply.
    """
    num_chars = num_values = 0
    for arguments in calls:
        num_chars += len(arguments)
        if num_chars > MAX_TEXT_CHARS:
            raise _too_large(f"more than {MAX_TEXT_CHARS} characters")
        try:
            pending: list[tuple[int, Any]] = [(1, parse_arguments(arguments))]
        except RecursionError:
            raise _too_large(f"more than {MAX_DEPTH} levels") from None
        while pending:
            depth, value = pending.pop()
            if not isinstance(value, dict | list):
                continue
            if depth > MAX_DEPTH:
                raise _too_large(f"more than {MAX_DEPTH} levels")
            num_values += len(value)
            if num_values > MAX_VALUES:
                raise _too_large(f"more than {MAX_VALUES} values")
            items = value.values() if isinstance(value, dict) else value
            pending += [(depth + 1, item) for item in items]


def _too_large(excess: str) -> InvalidParameterError:
    message = f"The arguments of the tool calls have {excess}, which is not allowed."
    return InvalidParameterError(message, "messages")
