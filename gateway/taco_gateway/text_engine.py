"""Text in, text out: what the HTTP routes, the Inference service and `taco_llm` generate with."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from taco_gateway.engine_client import EngineClient
from taco_gateway.tokenizer import Tokenizer
from taco_proto.requests import ModelInfo
from taco_proto.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Candidate:
    """One token that was possible at a position.

    Attributes:
        token: its text; of a token that holds part of a character, `bytes:` and its bytes as `\\x..`.
        token_bytes: its bytes in UTF-8.
        logprob: natural logarithm; may be -inf.
        rank: 1 for the most likely token of the vocabulary.
    """

    token_id: int
    token: str
    token_bytes: bytes
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The token at a position, and the most likely ones there, best first (as many as were asked for).

    Attributes:
        text_offset: characters of the sequence's text (of the prompt's text, for prompt log
            probabilities) before this token.
        in_text: False for a token that ended the sequence and is hidden from the text: EOS, a stop
            token, or one that lies wholly in a stop string that was cut off.
    """

    chosen: Candidate
    top: list[Candidate]
    text_offset: int
    in_text: bool = True


@dataclass(slots=True)
class TextUpdate:
    """News of one sequence.

    Attributes:
        index: which of the `n` sequences.
        text: the new piece; never half a character, nothing of a stop string that is cut off.
        token_ids: the new tokens. Text may lag behind them. Tokens that ended the sequence are among
            them (EOS, those of a stop string), tokens behind the hit of a stop string are not.
        logprobs: one entry a token of `token_ids`; None if none were asked for.
        finish_reason: "stop", "length" or "abort" on the sequence's last update, None before.
        stop_reason: the stop string or the id of the stop token that ended it; None for EOS.
        num_prompt_tokens, num_completion_tokens, num_cached_tokens: usage so far; `token_ids` is counted
            in `num_completion_tokens`.
        prompt_logprobs: one entry a prompt token, None for the first one. Whole, on one update of the
            request (index 0), if asked for.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    num_cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprob | None] | None = None


class TextEngine:
    """Generates text with an engine that knows token ids only. Belongs to the client's event loop.

    Args:
        client: the engine.
        tokenizer: None (`skip_tokenizer_init`): token ids in and out, all text empty.
        chat_template: a Jinja template or the path of one; None: the tokenizer's own.
    """

    def __init__(
        self,
        client: EngineClient,
        tokenizer: Tokenizer | None,
        *,
        chat_template: str | None = None,
    ) -> None:
        raise NotImplementedError

    client: EngineClient
    tokenizer: Tokenizer | None

    def model_info(self) -> ModelInfo:
        """Raises:
        EngineError: no worker serves the model (503).
        """
        raise NotImplementedError

    def sampling_params(self, given: Mapping[str, Any]) -> SamplingParams:
        """The parameters that a client gave, on top of the model's defaults (generation_config.json).

        Raises:
            InvalidParameterError: a value is out of range.
        """
        raise NotImplementedError

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a prompt, off the event loop. Special tokens in the text count as such."""
        raise NotImplementedError

    async def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        add_special_tokens: bool | None = None,
        chat_template: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a conversation. Special tokens in messages stay plain text.

        Args:
            messages: role, content (a string or a list of `{"type": "text", "text": …}` parts) and
                whatever else the template reads.
            add_special_tokens: let the tokenizer put its own (BOS) in front, never twice. None: only
                where the model has no template.
            chat_template: a template of the caller's own instead (trusted: the offline API only).
            template_kwargs: variables that the template names; others are refused.

        Raises:
            InvalidParameterError: the template refuses the messages, or takes too long.
        """
        raise NotImplementedError

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str,
        priority: int = 0,
        cache_salt: str = "",
        deadline: float | None = None,
        tenant: str = "",
        adapter: str = "",
        traceparent: str = "",
        clamp_max_tokens: bool = False,
    ) -> AsyncIterator[TextUpdate]:
        """Runs a request. Leaving the iterator (`aclose`) cancels it upstream.

        All checks are done before this returns, so that a bad request fails before a stream has begun.

        Args:
            params: `max_tokens=None` is as many as fit; a seed is drawn where none is given.
            clamp_max_tokens: shorten `max_tokens` to what fits instead of refusing it.

        Raises:
            InvalidParameterError: the prompt is empty or too long (`context_length_exceeded`), a token id
                or a parameter is out of the model's range.
            EngineError: no worker serves the model (503); while iterating, the request failed.
        """
        raise NotImplementedError
