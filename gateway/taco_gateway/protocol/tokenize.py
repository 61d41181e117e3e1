"""`POST /tokenize` and `POST /detokenize`: what comes in."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field

from taco_gateway.protocol.conversation import Conversation

MAX_TOKEN_ID = 2**31 - 1


class _TokenizerRequest(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    model: str | None = None

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Self:
        """Raises:
        pydantic.ValidationError: a value of the wrong type.
        """
        return cls.model_validate(
            {name: value for name, value in body.items() if value is not None}
        )


class TokenizeTextRequest(_TokenizerRequest):
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool = False


class TokenizeChatRequest(Conversation, _TokenizerRequest):
    add_special_tokens: bool | None = None
    return_token_strs: bool = False


class DetokenizeRequest(_TokenizerRequest):
    tokens: list[Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]]
