"""Types of prompts: text or token ids."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict


class TextPrompt(TypedDict):
    """A prompt as text."""

    prompt: str


class TokensPrompt(TypedDict):
    """A prompt as token ids."""

    prompt_token_ids: Sequence[int]


# A text, token ids, a `TextPrompt` or a `TokensPrompt`. The value of "prompt" may also be token
# ids.
PromptInputs = str | Sequence[int] | TextPrompt | TokensPrompt | Mapping[str, Any]
