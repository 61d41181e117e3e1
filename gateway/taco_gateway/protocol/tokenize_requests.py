"""Request schemas of `POST /tokenize` and `POST /detokenize`."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator

from taco_gateway.protocol.conversation import Conversation
from taco_gateway.protocol.null_fields import without_nulls
from taco_gateway.protocol.token_ids import MAX_TOKEN_ID, are_in_range, is_token_ids
from taco_gateway.protocol.tools import ToolFields
from taco_gateway.protocol.unsupported_fields import PROMPT_FIELDS, check_other_fields


class _TokenizerRequest(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    model: str | None = None

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Self:
        """Validates a JSON object.

        Raises:
            pydantic.ValidationError: a value has the wrong type.
        """
        return cls.model_validate(without_nulls(body))


class TokenizeTextRequest(_TokenizerRequest):
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool = False


class TokenizeChatRequest(ToolFields, Conversation, _TokenizerRequest):
    add_special_tokens: bool | None = None
    return_token_strs: bool = False

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Self:
        """Validates a JSON object.

        Raises:
            InvalidParameterError: a field would change the tokens and is not supported.
            pydantic.ValidationError: a value has the wrong type.
        """
        check_other_fields(without_nulls(body), PROMPT_FIELDS)
        return super().from_body(body)


class DetokenizeRequest(_TokenizerRequest):
    tokens: Any = Field(description="list of token ids")

    @field_validator("tokens")
    @classmethod
    def _check_tokens(cls, value: object) -> object:
        if value == []:
            return value
        if not is_token_ids(value):
            raise ValueError("must be a list of token ids")
        if not are_in_range(value):
            raise ValueError(f"its token ids must be in 0…{MAX_TOKEN_ID}")
        return value
