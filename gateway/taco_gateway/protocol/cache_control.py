"""Prefix cache fields of requests: Anthropic's `cache_control`, OpenAI's `prompt_cache_…`."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from taco_proto.errors import InvalidParameterError
from taco_proto.requests import PrefixPin

MAX_MARKS = 4  # Anthropic's limit
MAX_CACHE_KEY_CHARS = 256
MAX_CACHE_SALT_CHARS = 256

_TTL_SECONDS = {"5m": 300.0, "1h": 3600.0}
_RETENTION_SECONDS = {"24h": 86400.0}


class CacheControl(BaseModel):
    """Keeps the prompt in the prefix cache up to the end of the object that has this field."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None

    @property
    def seconds(self) -> float:
        return _TTL_SECONDS[self.ttl or "5m"]


class PromptCacheFields(BaseModel):
    """Prefix cache fields for the whole prompt of a request.

    Attributes:
        cache_control: keep the whole prompt.
        prompt_cache_key: requests with the same key share a prefix.
        prompt_cache_retention: how long the prompt is kept; "in_memory": while there is room.
        cache_salt: requests with different salts share no prefix.
    """

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    cache_control: CacheControl | None = None
    prompt_cache_key: str = Field(default="", max_length=MAX_CACHE_KEY_CHARS)
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] = "in_memory"
    cache_salt: str = Field(default="", max_length=MAX_CACHE_SALT_CHARS)

    @property
    def prompt_seconds(self) -> float:
        """Seconds for which the whole prompt is kept; 0: not requested."""
        asked = 0.0 if self.cache_control is None else self.cache_control.seconds
        return max(asked, _RETENTION_SECONDS.get(self.prompt_cache_retention, 0.0))

    def pins_of_whole(self, num_prompt_tokens: int) -> tuple[PrefixPin, ...]:
        """The pin that keeps the whole prompt, if requested."""
        seconds = self.prompt_seconds
        return (PrefixPin(num_prompt_tokens, seconds),) if seconds else ()


def check_num_marks(count: int) -> None:
    """Checks the number of `cache_control` marks of a request.

    Raises:
        InvalidParameterError: there are too many.
    """
    if count > MAX_MARKS:
        raise InvalidParameterError(
            f"At most {MAX_MARKS} cache_control marks are allowed, got {count}.", "messages"
        )
