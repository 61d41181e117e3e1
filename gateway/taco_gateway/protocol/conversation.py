"""Schema of the messages of a chat request, in OpenAI's form; text only."""

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from taco_gateway.protocol.cache_control import CacheControl
from taco_gateway.protocol.chat_template_kwargs import bounded_kwargs
from taco_gateway.protocol.null_fields import NullsAreAbsent, without_nulls
from taco_gateway.protocol.tool_call_arguments import check_arguments
from taco_gateway.text.chat_template.cache_breakpoints import Breakpoint
from taco_gateway.text.request_checks import MAX_TEXT_CHARS
from taco_proto.errors import InvalidParameterError

MAX_MESSAGES = 2048
MAX_TOOL_CALLS = 128  # of one message
MAX_TEMPLATE_CHARS = 2**17
MAX_DOCUMENTS = 1024
MAX_DOCUMENT_VALUES = 2**14  # of all documents
MAX_EFFORT_CHARS = 64


# Types of content parts with text, and the field that has it.
_TEXT_PARTS = {"refusal": "refusal", "input_text": "text", "output_text": "text"}


class TextPart(BaseModel):
    """A part of a message's content. Refusals, and texts of the Responses API, are text too."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = Field(default=None, exclude=True)

    @model_validator(mode="before")
    @classmethod
    def _as_text(cls, value: object) -> object:
        kind = value.get("type") if isinstance(value, dict) else None
        if not isinstance(value, dict) or not isinstance(kind, str) or kind not in _TEXT_PARTS:
            return value
        return {**value, "type": "text", "text": value.get(_TEXT_PARTS[kind])}

    @field_validator("type", mode="before")
    @classmethod
    def _only_text(cls, value: object) -> object:
        if isinstance(value, str) and value != "text":
            raise ValueError(f"content parts of type {value[:40]!r} are not supported")
        return value


class CalledFunction(NullsAreAbsent):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    name: str
    arguments: str = ""


class ToolCall(NullsAreAbsent):
    """A tool call in an assistant message of the history."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(BaseModel):
    """One message. An assistant message may include its `reasoning_content`."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = Field(
        default=None, validate_default=True
    )
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[ToolCall] | None = Field(default=None, max_length=MAX_TOOL_CALLS)
    reasoning_content: str | None = None
    cache_control: CacheControl | None = Field(default=None, exclude=True)

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        if self.content is None:
            return ""
        return "\n".join(part.text for part in self.content)

    @model_validator(mode="before")
    @classmethod
    def _with_newer_names(cls, value: object) -> object:
        """Turns `function_call`, the role `function` and `reasoning` into their newer names."""
        if not isinstance(value, dict):
            return value
        message = without_nulls(value)
        if call := message.pop("function_call", None):
            if message.get("tool_calls"):
                raise ValueError("function_call is the older name of tool_calls: give one of them")
            call = without_nulls(call) if isinstance(call, dict) else {"name": None}
            texts = (call.get(name, "") for name in ("name", "arguments"))
            if not all(isinstance(text, str) for text in texts):
                raise ValueError("function_call must be an object with texts as name and arguments")
            message["tool_calls"] = [{"function": call}]
        if message.get("role") == "function":
            message["role"] = "tool"
        if "reasoning_content" not in message and "reasoning" in message:
            message["reasoning_content"] = message["reasoning"]
        return message

    @field_validator("tool_calls")
    @classmethod
    def _only_the_assistant_calls(
        cls, value: list[ToolCall] | None, info: ValidationInfo
    ) -> list[ToolCall] | None:
        if value and info.data.get("role") != "assistant":
            raise ValueError("belong to messages of role 'assistant'")
        return value

    @field_validator("content", mode="before")
    @classmethod
    def _content_is_there(cls, value: object, info: ValidationInfo) -> object:
        if value is None and info.data.get("role") == "assistant":
            return None
        if value is None or value == []:
            raise ValueError("must be a string or a list of text parts")
        return value


class TemplateFields(BaseModel):
    """How a prompt is made of the messages of a request."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = Field(default=None, max_length=MAX_TEMPLATE_CHARS)
    chat_template_kwargs: dict[str, Any] | None = None
    documents: list[dict[str, Any]] | None = Field(default=None, max_length=MAX_DOCUMENTS)

    @field_validator("chat_template_kwargs", mode="before")
    @classmethod
    def _bounded_variables(cls, value: object) -> object:
        return bounded_kwargs(value) if isinstance(value, dict) else value

    @field_validator("documents")
    @classmethod
    def _bounded_documents(cls, value: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        if value:
            bounded_kwargs({"": value}, max_values=MAX_DOCUMENT_VALUES, max_chars=MAX_TEXT_CHARS)
        return value


class Conversation(TemplateFields):
    """The messages of a request, and how a prompt is made of them.

    Raises:
        InvalidParameterError: the order of the messages is not supported, or fields exclude each
            other.
    """

    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    reasoning_effort: str | None = Field(default=None, max_length=MAX_EFFORT_CHARS)
    verbosity: Literal["low", "medium", "high"] | None = None

    @model_validator(mode="after")
    def _check_arguments(self) -> "Conversation":
        calls = (call for message in self.messages for call in message.tool_calls or ())
        check_arguments(call.function.arguments for call in calls)
        return self

    @model_validator(mode="after")
    def _check_order(self) -> "Conversation":
        if self.continue_final_message and self.messages[-1].role != "assistant":
            raise InvalidParameterError(
                "continue_final_message needs a last message of role 'assistant'.",
                "continue_final_message",
            )
        return self

    @model_validator(mode="after")
    def _check_end(self) -> "Conversation":
        starts_turn = self.add_generation_prompt and (
            "add_generation_prompt" in self.model_fields_set
        )
        if self.continue_final_message and starts_turn:
            raise InvalidParameterError(
                "continue_final_message and add_generation_prompt exclude each other.",
                "continue_final_message",
            )
        return self

    @property
    def template_messages(self) -> list[dict[str, Any]]:
        """The messages as plain data."""
        return [message.model_dump(exclude_none=True) for message in self.messages]

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """Variables for the chat template."""
        kwargs = dict(self.chat_template_kwargs or {})
        for name in ("reasoning_effort", "verbosity"):
            if (value := getattr(self, name)) is not None:
                kwargs.setdefault(name, value)
        return kwargs

    @property
    def breakpoints(self) -> list[Breakpoint]:
        """The places up to which the prefix cache keeps the prompt, in order."""
        marks: list[tuple[int, int | None, CacheControl | None]] = []
        for index, message in enumerate(self.messages):
            parts = message.content if isinstance(message.content, list) else []
            marks += [(index, number, part.cache_control) for number, part in enumerate(parts)]
            marks.append((index, None, message.cache_control))
        return [Breakpoint(i, part, mark.seconds) for i, part, mark in marks if mark is not None]

    @property
    def starts_new_turn(self) -> bool:
        """Whether the model begins a new message instead of continuing the last one."""
        return self.add_generation_prompt and not self.continue_final_message
