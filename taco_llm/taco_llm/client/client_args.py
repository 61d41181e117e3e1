"""Arguments of `taco_llm chat` and `taco_llm complete`: server, API key, sampling."""

import os
from dataclasses import dataclass
from typing import Any

from taco_llm.api_keys import keys_of
from taco_llm.args.flags import flag
from taco_llm.args.scheduler_args import check_at_least
from taco_proto.errors import ArgumentError


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientArgs:
    """Arguments of both commands.

    Raises:
        ConfigurationError: a value is out of range.
    """

    url: str = flag(
        "URL of an OpenAI-compatible server.",
        default="http://localhost:8000/v1",
        metavar="URL",
    )
    model_name: str | None = flag(
        "Name of the model. Default: the first model of the server's /v1/models.",
        default=None,
        metavar="NAME",
    )
    api_key: str | None = flag(
        "API key of the server. Default: the first key in the environment variable TACO_API_KEY, "
        "VLLM_API_KEY or OPENAI_API_KEY.",
        default=None,
        metavar="KEY",
    )
    temperature: float | None = flag(
        "Sampling temperature; 0 always picks the most likely token. Default: the server's.",
        default=None,
        parse=float,
        metavar="NUMBER",
    )
    max_tokens: int | None = flag(
        "Maximum tokens of an answer. Default: the server's limit.",
        default=None,
        parse=int,
        metavar="TOKENS",
    )

    def __post_init__(self) -> None:
        check_at_least("max_tokens", self.max_tokens, 1)
        if self.temperature is not None and not self.temperature >= 0:
            raise ArgumentError(f"temperature must be at least 0, got {self.temperature}")

    @property
    def key(self) -> str | None:
        if self.api_key:
            return self.api_key
        keys = keys_of(os.environ)
        return keys[0] if keys else os.environ.get("OPENAI_API_KEY") or None

    def options(self) -> dict[str, Any]:
        """The sampling fields of a request that were given."""
        values = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatArgs(ClientArgs):
    """Arguments of `taco_llm chat`."""

    system_prompt: str | None = flag(
        "System prompt: instructions for the model before the conversation.",
        default=None,
        metavar="TEXT",
    )
