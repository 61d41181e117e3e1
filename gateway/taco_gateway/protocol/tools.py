"""Request fields with the functions that a model may call."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from taco_gateway.protocol.chat_template_kwargs import bounded_kwargs
from taco_gateway.protocol.tool_choice import ToolChoice, read_function_call, read_tool_choice
from taco_gateway.text.grammar.answer_rules import CallableTool, Enforcement
from taco_proto.errors import InvalidParameterError

MAX_TOOLS = 128
MAX_NAME_CHARS = 64
MAX_VALUES = 2**14  # of all tools
MAX_CHARS = 2**20
MAX_DEPTH = 64
_NOTHING: tuple[object, ...] = (False, "", [], {})


class _Function(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    name: str = Field(min_length=1, max_length=MAX_NAME_CHARS)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Tool(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    type: Literal["function"]
    function: _Function


class ToolFields(BaseModel):
    """The functions of a request, and how the model may call them.

    `functions` and `function_call` are the older names of `tools` and `tool_choice`; answers to
    them have at most one call.
    """

    tools: list[dict[str, Any]] | None = Field(default=None, max_length=MAX_TOOLS)
    tool_choice: Any = Field(
        default=None,
        description="`none`, `auto`, `required`, or an object that names a function or lists "
        "`allowed_tools`",
    )
    functions: list[dict[str, Any]] | None = Field(default=None, max_length=MAX_TOOLS)
    function_call: Any = Field(default=None, description="`none`, `auto`, or `{name}`")

    @field_validator("tools", "functions", "tool_choice", "function_call", mode="before")
    @classmethod
    def _nothing_is_absent(cls, value: object) -> object:
        return None if value in _NOTHING else value

    @field_validator("tools", "functions")
    @classmethod
    def _bounded_tools(cls, value: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        if value:
            bounded_kwargs(
                {"": value}, max_values=MAX_VALUES, max_chars=MAX_CHARS, max_depth=MAX_DEPTH
            )
        return value

    @model_validator(mode="after")
    def _check_tools(self) -> "ToolFields":
        if self.tools and self.functions:
            raise InvalidParameterError(
                "functions is the older name of tools: give one of them.", "functions"
            )
        names: set[str] = set()
        for index, tool in enumerate(self._given_tools()):
            name = _checked(tool, f"{self._tools_name}[{index}]", self._tools_name)
            if name in names:
                raise InvalidParameterError(
                    f"{self._tools_name}: two functions have the name {name!r}.", self._tools_name
                )
            names.add(name)
        choices = {
            "tool_choice": (read_tool_choice(self.tool_choice), self.tools),
            "function_call": (read_function_call(self.function_call), self.functions),
        }
        for field, (choice, tools) in choices.items():
            choice.check(field, names if tools else set())
        return self

    @property
    def _tools_name(self) -> str:
        return "functions" if self.functions else "tools"

    @property
    def has_old_names(self) -> bool:
        """The client reads `function_call` instead of `tool_calls`."""
        return bool(self.functions)

    @property
    def offered_tools(self) -> list[dict[str, Any]]:
        """The functions that the model may call, in the form of chat templates."""
        return [tool for _, tool in self._offered()]

    @property
    def tool_schemas(self) -> dict[str, Any]:
        """The JSON schema of the parameters of each offered tool, by name."""
        functions = [tool["function"] for tool in self.offered_tools]
        return {function["name"]: function.get("parameters") or {} for function in functions}

    @property
    def requires_call(self) -> bool:
        """The answer consists of one or more calls."""
        return self._choice.mode == "required"

    @property
    def callable_tools(self) -> tuple[CallableTool, ...]:
        """The functions that the answer may call, with their schemas."""
        called = self._choice.called
        tools: list[CallableTool] = []
        for index, tool in self._offered():
            function = tool["function"]
            if called and function["name"] != called:
                continue
            enforcement = Enforcement.LENIENT if self.requires_call else Enforcement.NONE
            if function.get("strict"):
                enforcement = Enforcement.STRICT
            place = f"tools[{index}].function.parameters"
            if self.functions:
                place = f"functions[{index}].parameters"
            schema = function.get("parameters") or {}
            tools.append(CallableTool(function["name"], schema, place, enforcement))
        return tuple(tools)

    @property
    def _choice(self) -> ToolChoice:
        if self.functions:
            return read_function_call(self.function_call)
        return read_tool_choice(self.tool_choice)

    def _offered(self) -> list[tuple[int, dict[str, Any]]]:
        """The offered functions with their places in the request."""
        choice = self._choice
        return [
            (index, tool)
            for index, tool in enumerate(self._given_tools())
            if choice.offers(tool["function"]["name"])
        ]

    def _given_tools(self) -> list[dict[str, Any]]:
        if self.functions:
            return [{"type": "function", "function": function} for function in self.functions]
        return self.tools or []


class CallFields(ToolFields):
    """The functions of a request, and how many calls its answer may have."""

    parallel_tool_calls: bool = True

    @property
    def max_calls(self) -> int | None:
        """Number of calls that end the answer; None: no limit."""
        return None if self.parallel_tool_calls and not self.functions else 1


def _checked(tool: dict[str, Any], place: str, param: str) -> str:
    """The name of a valid tool.

    Raises:
        InvalidParameterError: it is not valid.
    """
    try:
        function = _Tool.model_validate(tool).function
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        message = f"{place}.{where}: {first['msg']}"
        raise InvalidParameterError(message, param) from None
    return function.name
