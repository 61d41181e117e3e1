"""The arguments of `taco_llm chat` and `taco_llm complete`."""

import os
from dataclasses import dataclass
from typing import Any

from taco_llm.args.flags import flag
from taco_llm.args.gateway_args import keys_of
from taco_llm.args.scheduler_args import check_at_least
from taco_proto.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientArgs:
    """Where the server is, and how it is asked.

    Raises:
        ConfigurationError: a value is out of range.
    """

    url: str = flag(
        "URL of an OpenAI-compatible server.",
        default="http://localhost:8000/v1",
        metavar="URL",
    )
    model_name: str | None = flag(
        "Name of the model to ask. Without it the first model that the server lists.",
        default=None,
        metavar="NAME",
    )
    api_key: str | None = flag(
        "API key of the server. Without it the first key of the environment's TACO_API_KEY, or "
        "VLLM_API_KEY, or OPENAI_API_KEY.",
        default=None,
        metavar="KEY",
    )
    temperature: float | None = flag(
        "Sampling temperature; 0 always takes the likeliest token. Without it the server's own.",
        default=None,
        parse=float,
        metavar="TEMPERATURE",
    )
    max_tokens: int | None = flag(
        "Maximum tokens of an answer. Without it the server's own limit.",
        default=None,
        parse=int,
        metavar="TOKENS",
    )

    def __post_init__(self) -> None:
        check_at_least("max_tokens", self.max_tokens, 1)
        if self.temperature is not None and not self.temperature >= 0:
            raise ConfigurationError(f"temperature must be at least 0, got {self.temperature}")

    @property
    def key(self) -> str | None:
        if self.api_key:
            return self.api_key
        keys = keys_of(os.environ)
        return keys[0] if keys else os.environ.get("OPENAI_API_KEY") or None

    def options(self) -> dict[str, Any]:
        """The fields of a request that were given."""
        values = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatArgs(ClientArgs):
    """Arguments of `taco_llm chat`."""

    system_prompt: str | None = flag(
        "Instructions for the model, which precede the conversation.",
        default=None,
        metavar="TEXT",
    )
