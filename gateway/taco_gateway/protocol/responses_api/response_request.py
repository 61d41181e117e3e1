"""Request schema of `POST /v1/responses`."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, PrivateAttr, field_validator, model_validator

from taco_gateway.protocol.chat_request import ReasoningFields
from taco_gateway.protocol.conversation import MAX_EFFORT_CHARS, TemplateFields
from taco_gateway.protocol.null_fields import NullsAreAbsent, without_nulls
from taco_gateway.protocol.responses_api.chat_form import ChatForm
from taco_gateway.protocol.responses_api.function_tools import chat_tool_choice, chat_tools
from taco_gateway.protocol.responses_api.input_items import InputField
from taco_gateway.protocol.responses_api.input_messages import chat_messages
from taco_gateway.protocol.responses_api.rejected_fields import check_rejected_fields
from taco_gateway.protocol.sampling_fields import SamplingFields
from taco_gateway.protocol.structured_output_fields import ConstraintFields
from taco_gateway.protocol.tools import MAX_TOOLS
from taco_proto.errors import InvalidParameterError
from taco_proto.sampling_params import MAX_TOKENS

MAX_TOP_LOGPROBS = 20  # OpenAI's limit
MAX_METADATA = 16
MAX_METADATA_CHARS = 512  # of a value
LOGPROBS = "message.output_text.logprobs"

# Except for `LOGPROBS`, these ask for parts that no answer of this server has.
Includable = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class _Options(NullsAreAbsent):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class TextOptions(_Options):
    """Attributes:
    format: `text`, `json_object`, or `json_schema` with `name`, `schema` and `strict`.
    """

    format: dict[str, Any] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None

    @field_validator("format")
    @classmethod
    def _known_type(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        known = ("text", "json_object", "json_schema")
        if value is not None and value.get("type") not in known:
            raise ValueError(f"its type must be one of {', '.join(known)}")
        return value


class ReasoningOptions(_Options):
    """Attributes:
    effort: goes to chat templates that read it.
    summary: has no effect, because answers have the reasoning itself.
    """

    effort: str | None = Field(default=None, max_length=MAX_EFFORT_CHARS)
    summary: Literal["auto", "concise", "detailed"] | None = None


class ResponsesRequest(
    ReasoningFields, TemplateFields, ConstraintFields, SamplingFields, InputField
):
    """A conversation as items, and how its answer is generated."""

    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1, le=MAX_TOKENS)
    text: TextOptions = TextOptions()
    reasoning: ReasoningOptions = ReasoningOptions()
    tools: list[dict[str, Any]] = Field(default=[], max_length=MAX_TOOLS)
    tool_choice: Any = Field(
        default="auto",
        description="`none`, `auto`, `required`, or an object that names a function or lists "
        "`allowed_tools`",
    )
    parallel_tool_calls: bool = True
    max_tool_calls: int | None = None
    include: list[Includable] = Field(default=[])
    top_logprobs: int = Field(default=0, ge=0, le=MAX_TOP_LOGPROBS)
    metadata: dict[str, Annotated[str, Field(max_length=MAX_METADATA_CHARS)]] = Field(
        default={}, max_length=MAX_METADATA
    )
    user: str | None = None
    safety_identifier: str | None = None

    _chat: ChatForm = PrivateAttr()

    @property
    def chat(self) -> ChatForm:
        """The chat request with the same answer."""
        return self._chat

    @property
    def has_logprobs(self) -> bool:
        return LOGPROBS in self.include

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Self:
        """Validates a JSON object.

        Raises:
            InvalidParameterError: an unsupported feature, or contradicting parameters.
            pydantic.ValidationError: a value has the wrong type.
        """
        given = without_nulls(body)
        check_rejected_fields(given, cls.model_fields.keys())
        request = cls.model_validate(given)
        shared = {name: given[name] for name in _SHARED & given.keys()}
        request._chat = ChatForm.of({**shared, **request._chat_values()})
        return request

    @model_validator(mode="after")
    def _check_logprobs(self) -> "ResponsesRequest":
        for name in ("top_logprobs", "logprob_token_ids"):
            if getattr(self, name) and not self.has_logprobs:
                raise InvalidParameterError(f'{name} needs include=["{LOGPROBS}"].', name)
        return self

    def _chat_values(self) -> dict[str, Any]:
        """The fields that chat has in another form."""
        values: dict[str, Any] = {
            "messages": chat_messages(self.input, self.instructions),
            "tools": chat_tools(self.tools),
            "tool_choice": chat_tool_choice(self.tool_choice),
            "parallel_tool_calls": self.parallel_tool_calls,
            "max_completion_tokens": self.max_output_tokens,
            "reasoning_effort": self.reasoning.effort,
            "verbosity": self.text.verbosity,
            "response_format": _response_format(self.text.format),
        }
        if self.has_logprobs:
            values |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        return values


# Fields that chat has by the same name.
_SHARED = frozenset(
    name
    for base in (ReasoningFields, TemplateFields, ConstraintFields, SamplingFields)
    for name in base.model_fields
)


def _response_format(text_format: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The field `response_format` of chat: its schema is in a further object."""
    if text_format is None or text_format["type"] != "json_schema":
        return text_format
    described = {name: value for name, value in text_format.items() if name != "type"}
    return {"type": "json_schema", "json_schema": described}
