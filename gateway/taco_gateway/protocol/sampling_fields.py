"""Request fields that chat, completions and responses share: sampling parameters and extensions.

Schemas check types and limits of HTTP; `SamplingParams` checks the ranges of sampling parameters.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema, field_validator

from taco_gateway.protocol.cache_control import PromptCacheFields
from taco_gateway.protocol.token_ids import as_list
from taco_proto.requests import LOW_PRIORITY
from taco_proto.sampling_params import MAX_STOP_STRINGS

_TOKEN_ID = re.compile(r"0|-?[1-9][0-9]{0,18}")  # one form of each number
MAX_PRIORITY = 2**31 - 1
_OR_LOW = WithJsonSchema(
    {
        "anyOf": [
            {"type": "integer", "minimum": -MAX_PRIORITY, "maximum": MAX_PRIORITY},
            {"const": "low"},
        ]
    }
)


class SamplingFields(PromptCacheFields):
    """Fields with names of `SamplingParams` go there unchanged; None is the model's default."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    model: str | None = None
    stream: bool = False

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    seed: int | None = None
    min_tokens: int | None = None
    stop: list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    logprob_token_ids: list[int] | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    logits_processors: list[str] | None = None
    vllm_xargs: dict[str, Any] | None = None

    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY), _OR_LOW] = 0
    add_special_tokens: bool | None = None
    return_tokens_as_token_ids: bool | None = None

    @field_validator("priority", mode="before")
    @classmethod
    def _named_priority(cls, value: object) -> object:
        return LOW_PRIORITY if value == "low" else value

    @field_validator("stop", mode="before")
    @classmethod
    def _stop_as_list(cls, value: object) -> object:
        stop = [value] if isinstance(value, str) else value
        if isinstance(stop, list) and len(stop) > MAX_STOP_STRINGS:
            raise ValueError(f"takes at most {MAX_STOP_STRINGS} strings, got {len(stop)}")
        return stop

    @field_validator("stop_token_ids", "allowed_token_ids", "logprob_token_ids", mode="before")
    @classmethod
    def _token_ids_as_list(cls, value: object) -> object:
        return as_list(value)

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _integer_keys(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        if not all(_TOKEN_ID.fullmatch(key) for key in value):
            raise ValueError("its keys must be token ids")
        return {int(token_id): bias for token_id, bias in value.items()}
