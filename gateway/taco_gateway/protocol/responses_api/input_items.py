"""Schema of the items in the field `input` of `POST /v1/responses`; text only."""

from typing import Annotated, Any, Literal, NoReturn

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

from taco_gateway.protocol.cache_control import CacheControl
from taco_gateway.protocol.conversation import TextPart
from taco_gateway.protocol.null_fields import NullsAreAbsent

_PART_SCHEMA = {
    "type": "object",
    "required": ["type"],
    "properties": {
        "type": {"enum": ["input_text", "output_text", "text", "refusal"]},
        "text": {"type": "string"},
    },
}
_SUPPORTED = "message, function_call, function_call_output and reasoning"

Part = Annotated[TextPart, WithJsonSchema(_PART_SCHEMA)]
Parts = Annotated[list[Part], Field(fail_fast=True)]


class _Item(NullsAreAbsent):
    """An item of the conversation. Its `id` and `status` are ignored: nothing is stored."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class InputMessage(_Item):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Parts
    cache_control: CacheControl | None = None


class FunctionCall(_Item):
    """A call that the model has made in an earlier response."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str = ""


class FunctionCallOutput(_Item):
    """The result of a call, which the client has run."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | Parts


class _ReasoningPart(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    text: str


class ReasoningItem(_Item):
    """Reasoning of an earlier response. Its `encrypted_content` is ignored."""

    type: Literal["reasoning"]
    content: list[_ReasoningPart] = Field(default=[])
    summary: list[_ReasoningPart] = Field(default=[])

    @property
    def text(self) -> str:
        """The reasoning, or its summary if the item lacks the reasoning."""
        return "\n".join(part.text for part in self.content or self.summary)


class UnsupportedItem(BaseModel):
    """Rejects items of all other types: it has no instances."""

    @model_validator(mode="before")
    @classmethod
    def _reject(cls, value: object) -> NoReturn:
        if not isinstance(value, dict):
            raise ValueError("must be an object")
        if _is_reference(value):
            raise ValueError(
                "item references are not supported, because this server stores no items: send the "
                "item"
            )
        shown = repr(value.get("type"))[:60]
        raise ValueError(f"items of type {shown} are not supported, only {_SUPPORTED}")


def _is_reference(value: dict[str, Any]) -> bool:
    """OpenAI's clients may leave out the type of a reference."""
    kind = value.get("type")
    return kind == "item_reference" or (kind is None and value.keys() == {"id"})


def _tag(value: Any) -> str:
    """The tag of an item's schema. Errors do not show tags, because they are no identifiers."""
    if not isinstance(value, dict):
        return "other item"
    kind = value.get("type")
    if kind is None and not _is_reference(value):
        return "message item"  # OpenAI's short form
    known = ("message", "function_call", "function_call_output", "reasoning")
    return f"{kind} item" if kind in known else "other item"


InputItem = Annotated[
    Annotated[InputMessage, Tag("message item")]
    | Annotated[FunctionCall, Tag("function_call item")]
    | Annotated[FunctionCallOutput, Tag("function_call_output item")]
    | Annotated[ReasoningItem, Tag("reasoning item")]
    | Annotated[SkipJsonSchema[UnsupportedItem], Tag("other item")],
    Discriminator(_tag),
]
Item = InputMessage | FunctionCall | FunctionCallOutput | ReasoningItem | UnsupportedItem


class InputField(BaseModel):
    """The conversation: a text of the user, or items."""

    input: str | Annotated[list[InputItem], Field(fail_fast=True)] = Field(
        description="text of the user, or list of items: message, function_call, "
        "function_call_output, reasoning"
    )

    @field_validator("input", mode="before")
    @classmethod
    def _plain(cls, value: object) -> object:
        if not isinstance(value, str | list):
            raise ValueError("must be a string or a list of items")
        return value
