"""Request schema of `POST /v1/chat/completions`."""

from typing import Any

from pydantic import BaseModel, Field, model_validator

from taco_gateway.protocol.cache_control import check_num_marks
from taco_gateway.protocol.conversation import Conversation
from taco_gateway.protocol.generation_request import GenerationRequest
from taco_gateway.protocol.tools import CallFields
from taco_gateway.text.chat_template.cache_breakpoints import Breakpoint
from taco_gateway.text.grammar.answer_rules import AnswerWish
from taco_proto.errors import InvalidParameterError
from taco_proto.sampling_params import ALL_TOKENS, MAX_TOKENS


class ReasoningFields(BaseModel):
    """The reasoning of an answer: whether it is in the answer, and its length."""

    include_reasoning: bool = True
    thinking_token_budget: int | None = Field(
        default=None, ge=-1, description="tokens of the reasoning; -1: no limit"
    )


class ChatCompletionRequest(ReasoningFields, Conversation, CallFields, GenerationRequest):
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=ALL_TOKENS)
    # 0 has a meaning for completions only, whose `echo` returns the prompt.
    max_completion_tokens: int | None = Field(default=None, ge=1, le=MAX_TOKENS)
    echo: bool = False

    @model_validator(mode="after")
    def _check_logprobs(self) -> "ChatCompletionRequest":
        for name in ("top_logprobs", "logprob_token_ids"):
            if getattr(self, name) is not None and not self.logprobs:
                raise InvalidParameterError(f"{name} needs logprobs=true.", name)
        return self

    @model_validator(mode="after")
    def _check_breakpoints(self) -> "ChatCompletionRequest":
        check_num_marks(len(super().breakpoints) + (self.cache_control is not None))
        return self

    @property
    def breakpoints(self) -> list[Breakpoint]:
        marked = super().breakpoints
        if self.prompt_seconds:
            marked.append(Breakpoint(len(self.messages) - 1, None, self.prompt_seconds))
        return marked

    @property
    def wish(self) -> AnswerWish:
        """What the request demands of its answer."""
        budget = self.thinking_token_budget
        return AnswerWish(
            tools=self.callable_tools,
            requires_call=self.requires_call,
            has_one_call=self.max_calls == 1,
            has_constraint=self.has_constraint,
            max_reasoning_tokens=None if budget is None or budget < 0 else budget,
        )

    def client_names(self) -> dict[str, str]:
        return {"prompt": "messages", "logprobs": "top_logprobs", **super().client_names()}

    def sampling_values(self) -> dict[str, Any]:
        values = super().sampling_values()
        # None: as many as the context length allows.
        values["max_tokens"] = self.asked_max_tokens
        if self.logprobs:
            values["logprobs"] = self.top_logprobs or 0
        return values
