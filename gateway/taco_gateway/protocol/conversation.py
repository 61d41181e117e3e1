"""A conversation as OpenAI's chat surface writes it; text only."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from taco_gateway.protocol.cache_control import CacheControl
from taco_gateway.text.breakpoints import Breakpoint
from taco_proto.errors import InvalidParameterError

MAX_MESSAGES = 2048


class TextPart(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = Field(default=None, exclude=True)

    @field_validator("type", mode="before")
    @classmethod
    def _only_text(cls, value: object) -> object:
        if isinstance(value, str) and value != "text":
            raise ValueError(f"content parts of type {value[:40]!r} are not supported")
        return value


class ChatMessage(BaseModel):
    """One turn. What a model said of its own reasoning may come back with it."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]
    name: str | None = None
    reasoning_content: str | None = None
    cache_control: CacheControl | None = Field(default=None, exclude=True)

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content)

    @model_validator(mode="before")
    @classmethod
    def _no_tool_calls(cls, value: object) -> object:
        if isinstance(value, dict):
            for name in ("tool_calls", "function_call"):
                if value.get(name):
                    raise ValueError(f"{name} are not supported by this server")
        return value

    @field_validator("content", mode="before")
    @classmethod
    def _content_is_there(cls, value: object) -> object:
        if value is None or value == []:
            raise ValueError("must be a string or a list of text parts")
        return value


class Conversation(BaseModel):
    """Raises:
    InvalidParameterError: the messages do not follow on one another.
    """

    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    @model_validator(mode="after")
    def _check_order(self) -> "Conversation":
        if any(message.role == "tool" for message in self.messages):
            raise InvalidParameterError(
                "A message of role 'tool' must follow an assistant message with its tool call.",
                "messages",
            )
        if self.continue_final_message and self.messages[-1].role != "assistant":
            raise InvalidParameterError(
                "continue_final_message needs a last message of role 'assistant'.",
                "continue_final_message",
            )
        return self

    @property
    def template_messages(self) -> list[dict[str, Any]]:
        """The messages as chat templates know them."""
        return [message.model_dump(exclude_none=True) for message in self.messages]

    @property
    def breakpoints(self) -> list[Breakpoint]:
        """Up to where the prompt is to be kept in the prefix cache, in the order of the places."""
        marks: list[tuple[int, int | None, CacheControl | None]] = []
        for index, message in enumerate(self.messages):
            parts = message.content if isinstance(message.content, list) else []
            marks += [(index, number, part.cache_control) for number, part in enumerate(parts)]
            marks.append((index, None, message.cache_control))
        return [Breakpoint(i, part, mark.seconds) for i, part, mark in marks if mark is not None]

    @property
    def opens_turn(self) -> bool:
        """Whether the model begins a turn of its own rather than going on with the last one."""
        return self.add_generation_prompt and not self.continue_final_message
