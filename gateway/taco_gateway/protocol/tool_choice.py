"""The request field `tool_choice`, and its older form `function_call`."""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, Literal

from taco_proto.errors import InvalidParameterError

Mode = Literal["none", "auto", "required"]
_MODES: tuple[Mode, ...] = ("none", "auto", "required")
_ALLOWED_TOOLS = "allowed_tools"
_ALLOWED_FORM = (
    '{"mode": "auto" or "required", "tools": [{"type": "function", "function": {"name": …}}, …]}'
)


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """How the model may call the functions of a request.

    Attributes:
        mode: no calls, calls if the model wants, or one or more calls.
        allowed: names of the functions that the model sees; None: all.
        called: the only function that it calls; empty: any that it sees.
    """

    mode: Mode = "auto"
    allowed: frozenset[str] | None = None
    called: str = ""

    def offers(self, name: str) -> bool:
        """Whether the model sees a function."""
        return self.mode != "none" and (self.allowed is None or name in self.allowed)

    def check(self, field: str, names: Set[str]) -> None:
        """Checks the choice against the functions of the request.

        Args:
            field: the field of the choice.
            names: of the functions.

        Raises:
            InvalidParameterError: there are no functions, or not the chosen ones.
        """
        if not names and (self.mode == "required" or self.allowed is not None):
            raise InvalidParameterError(f"{field} needs functions to choose from.", field)
        chosen = {self.called} - {""} | (self.allowed or set())
        if unknown := sorted(chosen - names):
            listed = " or ".join(map(repr, unknown))
            raise InvalidParameterError(f"{field}: there is no function {listed}.", field)


def read_tool_choice(value: Any) -> ToolChoice:
    """The choice of the field `tool_choice`.

    Raises:
        InvalidParameterError: it has none of the known forms.
    """
    if isinstance(value, Mapping) and value.get("type") == _ALLOWED_TOOLS:
        return _allowed_tools(value.get(_ALLOWED_TOOLS))
    return _plain("tool_choice", value, _MODES, "an object that names a function or allowed tools")


def read_function_call(value: Any) -> ToolChoice:
    """The choice of the field `function_call`.

    Raises:
        InvalidParameterError: it has none of the known forms.
    """
    if isinstance(value, Mapping):
        value = {"type": "function", "function": value}
    return _plain("function_call", value, _MODES[:2], "an object that names a function")


def _plain(field: str, value: Any, modes: tuple[Mode, ...], others: str) -> ToolChoice:
    if value is None:
        return ToolChoice()
    for mode in modes:
        if value == mode:
            return ToolChoice(mode)
    if name := _function_name(value):
        return ToolChoice("required", called=name)
    listed = ", ".join(map(repr, modes))
    raise InvalidParameterError(f"{field} must be {listed} or {others}.", field)


def _allowed_tools(value: Any) -> ToolChoice:
    mode = value.get("mode") if isinstance(value, Mapping) else None
    tools = value.get("tools") if isinstance(value, Mapping) else None
    names = list(_names(tools))
    if mode in ("auto", "required") and names and all(names):
        return ToolChoice(mode, allowed=frozenset(names))
    raise InvalidParameterError(
        f"tool_choice.{_ALLOWED_TOOLS} must be {_ALLOWED_FORM}.", "tool_choice"
    )


def _names(tools: Any) -> Iterator[str]:
    """The name of each tool; empty: it has none."""
    for tool in tools if isinstance(tools, list) else ():
        yield _function_name(tool)


def _function_name(tool: Any) -> str:
    """The name in `{"type": "function", "function": {"name"}}`; empty: it has another form."""
    if not isinstance(tool, Mapping) or tool.get("type", "function") != "function":
        return ""
    function = tool.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else ""
