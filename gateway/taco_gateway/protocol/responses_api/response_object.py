"""The response object of `POST /v1/responses`, and its items."""

import time
from typing import Any, Literal

from pydantic import BaseModel

from taco_gateway.protocol.logprobs import ChatTokenLogprob
from taco_gateway.protocol.responses import Usage

SERVER_ERROR = "server_error"

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed"]


class TextWithLogprobs(BaseModel):
    text: str
    logprobs: list[ChatTokenLogprob] = []


class OutputText(TextWithLogprobs):
    type: Literal["output_text"] = "output_text"
    annotations: list[dict[str, Any]] = []


class ReasoningText(BaseModel):
    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


class OutputMessage(BaseModel):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    status: ItemStatus
    content: list[OutputText]


class OutputReasoning(BaseModel):
    """The reasoning of the model as it is: there are no summaries."""

    id: str
    type: Literal["reasoning"] = "reasoning"
    status: ItemStatus
    summary: list[dict[str, Any]] = []
    content: list[ReasoningText]
    encrypted_content: None = None


class OutputFunctionCall(BaseModel):
    id: str
    type: Literal["function_call"] = "function_call"
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


OutputObject = OutputMessage | OutputReasoning | OutputFunctionCall


class InputTokensDetails(BaseModel):
    """Every prompt is written to the prefix cache, so writes are not counted apart."""

    cached_tokens: int
    cache_write_tokens: Literal[0] = 0


class OutputTokensDetails(BaseModel):
    reasoning_tokens: int


class ResponseUsage(BaseModel):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> "ResponseUsage":
        """The usage of a chat answer by the names of responses."""
        cached = usage.prompt_tokens_details.cached_tokens
        reasoning = usage.completion_tokens_details.reasoning_tokens
        return cls(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=cached),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=reasoning),
            total_tokens=usage.total_tokens,
        )


class ResponseError(BaseModel):
    code: str
    message: str


class IncompleteDetails(BaseModel):
    reason: Literal["max_output_tokens"]


class ReasoningSettings(BaseModel):
    effort: str | None
    summary: str | None


class TextSettings(BaseModel):
    format: dict[str, Any]
    verbosity: str | None


class Response(BaseModel):
    """A response: what the client asked for, and the answer as far as it is known.

    `temperature` and `top_p` are those that were used: the client's, or the model's defaults.
    """

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus
    background: Literal[False] = False
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    parallel_tool_calls: bool
    previous_response_id: None = None
    prompt_cache_key: str | None
    reasoning: ReasoningSettings
    safety_identifier: str | None
    service_tier: Literal["default"] = "default"
    store: Literal[False] = False
    temperature: float
    text: TextSettings
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    user: str | None
    output: list[OutputObject] = []  # the last field, so that streams can write its items once

    def ended(self, finish_reason: str | None, usage: Usage) -> "Response":
        """The response after its last token, without the output."""
        changes: dict[str, Any] = {"usage": ResponseUsage.of(usage)}
        match finish_reason:
            case "stop" | "tool_calls":
                changes |= {"status": "completed", "completed_at": int(time.time())}
            case "length":
                details = IncompleteDetails(reason="max_output_tokens")
                changes |= {"status": "incomplete", "incomplete_details": details}
            case _:
                error = ResponseError(code=SERVER_ERROR, message="The request was aborted.")
                changes |= {"status": "failed", "error": error}
        return self.model_copy(update=changes)
