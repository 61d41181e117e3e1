"""The form in which chat templates read the messages of a conversation."""

import json
from collections.abc import Mapping
from typing import Any


def template_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as templates read it, whichever interface it came through.

    Templates test whether a message has calls and not how many, and join its content to other
    texts. So an empty list of calls is absent, and missing content is an empty text. Some templates
    read the document of a call's arguments, and others its text: an object has both, of which
    `call_arguments` makes one value.
    """
    form = dict(message)
    if form.get("content") is None:
        form["content"] = ""
    calls = form.pop("tool_calls", None)
    if calls:
        form["tool_calls"] = [_with_both_arguments(call) for call in calls]
    return form


def parse_arguments(arguments: str) -> Any:
    """The document of a call's arguments; the string itself if it is not JSON.

    A call without arguments may have none: they are an empty object.

    Raises:
        RecursionError: it is nested too deeply, by some hundreds of levels or more.
    """
    if not arguments.strip():
        return {}
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _with_both_arguments(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or "arguments" not in function:
        return call
    given = arguments = function["arguments"]
    if isinstance(given, Mapping):
        arguments = {"document": given, "text": None}
    elif isinstance(given, str) and isinstance(document := parse_arguments(given), dict):
        arguments = {"document": document, "text": given.strip() or "{}"}
    return {**call, "function": {**function, "arguments": arguments}}
