"""What a prompt may be."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict


class TextPrompt(TypedDict):
    """A prompt as text."""

    prompt: str


class TokensPrompt(TypedDict):
    """A prompt as token ids."""

    prompt_token_ids: Sequence[int]


# A text, its token ids, or a mapping with either of them: a `TextPrompt` or a `TokensPrompt`. The
# value under "prompt" may be token ids as well.
PromptInputs = str | Sequence[int] | TextPrompt | TokensPrompt | Mapping[str, Any]
