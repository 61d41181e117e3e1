"""The arguments of tool calls as chat templates read them: a document, a text, or both."""

import json
from typing import Any


class CallArguments(dict[str, Any]):
    """An object that is joined to other texts as the JSON that the client sent.

    `arguments | tojson` and `arguments.items()` read the object. `'x' + arguments`, with which
    DeepSeek's templates write it, fails for other objects.
    """

    def __init__(self, document: dict[str, Any], text: str | None) -> None:
        super().__init__(document)
        self._text = text

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False) if self._text is None else self._text

    def __add__(self, other: object) -> str:
        return str(self) + other if isinstance(other, str) else NotImplemented

    def __radd__(self, other: object) -> str:
        return other + str(self) if isinstance(other, str) else NotImplemented


def join_arguments(messages: list[dict[str, Any]]) -> None:
    """Replace the two forms of arguments in the messages, which `template_message` made."""
    for message in messages:
        for call in message.get("tool_calls") or ():
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict) and isinstance(function.get("arguments"), dict):
                function["arguments"] = CallArguments(**function["arguments"])
