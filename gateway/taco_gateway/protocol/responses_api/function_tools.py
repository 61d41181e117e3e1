"""Turns the tools of `POST /v1/responses`, which are flat objects, into the form of chat."""

from collections.abc import Mapping, Sequence
from typing import Any

from taco_proto.errors import InvalidParameterError

_FUNCTION = "function"
_MODES = ("none", "auto", "required")
_FIELDS = ("name", "description", "parameters", "strict")
_CHOICES = (
    "'none', 'auto', 'required', {\"type\": \"function\", \"name\": …} or "
    '{"type": "allowed_tools", "mode": "auto" or "required", "tools": [{"type": "function", '
    '"name": …}, …]}'
)


def chat_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tools of a chat request. Chat checks the functions themselves.

    Raises:
        InvalidParameterError: a tool is no function.
    """
    for index, tool in enumerate(tools):
        if (kind := tool.get("type")) != _FUNCTION:
            raise InvalidParameterError(
                f"tools[{index}].type: tools of type {kind!r:.60} are not supported by this "
                "server, only functions that the client runs.",
                "tools",
                "unsupported_parameter",
            )
    return [_nested(tool) for tool in tools]


def chat_tool_choice(choice: Any) -> Any:
    """The field `tool_choice` of a chat request. Chat checks that the functions exist.

    Raises:
        InvalidParameterError: it has none of the known forms.
    """
    if choice in _MODES:
        return choice
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind == _FUNCTION and _has_name(choice):
        return _nested(choice)
    if kind == "allowed_tools" and _are_functions(choice.get("tools")):
        allowed = {
            "mode": choice.get("mode"),
            "tools": [_nested(tool) for tool in choice["tools"]],
        }
        if allowed["mode"] in _MODES[1:]:
            return {"type": "allowed_tools", "allowed_tools": allowed}
    raise InvalidParameterError(f"tool_choice must be {_CHOICES}.", "tool_choice")


def _nested(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {name: tool[name] for name in _FIELDS if tool.get(name) is not None}
    return {"type": _FUNCTION, "function": function}


def _are_functions(tools: Any) -> bool:
    if not isinstance(tools, list) or not tools:
        return False
    return all(
        isinstance(tool, Mapping) and tool.get("type") == _FUNCTION and _has_name(tool)
        for tool in tools
    )


def _has_name(tool: Mapping[str, Any]) -> bool:
    name = tool.get("name")
    return isinstance(name, str) and bool(name)
