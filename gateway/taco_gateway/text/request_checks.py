"""Checks a request against the limits of the served model, before it reaches the scheduler."""

from array import array
from collections.abc import Sequence

from taco_proto.errors import InvalidParameterError
from taco_proto.logprob_limits import excess
from taco_proto.requests import ModelInfo
from taco_proto.sampling_params import ALL_TOKENS, TO_THE_MODELS_LENGTH, SamplingParams

CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
# More than any model reads; tokenizing a longer text would cost minutes and gigabytes.
MAX_TEXT_CHARS = 2**23
_SLICE = 2**14  # token ids that are checked at a time


def check_text(text: str, param: str) -> None:
    """Checks that a text can be tokenized.

    Raises:
        InvalidParameterError: the text has half a surrogate pair, or is too long.
    """
    if len(text) > MAX_TEXT_CHARS:
        raise InvalidParameterError(
            f"{param} has {len(text)} characters; at most {MAX_TEXT_CHARS} are allowed.",
            param,
            CONTEXT_LENGTH_EXCEEDED,
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidParameterError(f"{param} is not valid Unicode", param) from None


def check_prompt_length(
    num_tokens: int, max_model_len: int, *, param: str = "prompt", at_least: bool = False
) -> None:
    """Checks that a prompt leaves room for at least one token.

    Args:
        at_least: `num_tokens` is a lower bound, because the prompt was not tokenized.

    Raises:
        InvalidParameterError: it does not (`context_length_exceeded`).
    """
    if num_tokens >= max_model_len:
        raise InvalidParameterError(
            f"This model's maximum context length is {max_model_len} tokens, and the prompt has "
            f"{'at least ' if at_least else ''}{num_tokens}, which leaves no room for an answer. "
            "Shorten the prompt.",
            param,
            CONTEXT_LENGTH_EXCEEDED,
        )


class CheckedTokenIds(array):
    """Token ids of a prompt that are in the model's vocabulary, as packed int32."""


def checked_token_ids(token_ids: Sequence[int], info: ModelInfo) -> CheckedTokenIds:
    """Checks and packs the token ids of a long prompt; call it from a thread.

    It works in slices of milliseconds, between which other threads run.

    Raises:
        InvalidParameterError: a token id is not in the model's vocabulary.
    """
    checked = CheckedTokenIds("i")
    for start in range(0, len(token_ids), _SLICE):
        piece = token_ids[start : start + _SLICE]
        _check_vocabulary(piece, info)
        checked.extend(piece)
    return checked


def check_prompt(token_ids: Sequence[int], info: ModelInfo, *, is_checked: bool = False) -> None:
    """Checks a prompt's length and its token ids.

    Args:
        is_checked: the token ids have been checked already.

    Raises:
        InvalidParameterError: the prompt is empty, leaves no room for a token, or has a token id
            outside the model's vocabulary.
    """
    if not token_ids:
        raise InvalidParameterError("The prompt is empty.", "prompt")
    check_prompt_length(len(token_ids), info.max_model_len)
    if not is_checked:
        _check_vocabulary(token_ids, info)


def _check_vocabulary(token_ids: Sequence[int], info: ModelInfo) -> None:
    if not all(type(token_id) is int for token_id in token_ids):
        raise InvalidParameterError("Token ids must be integers.", "prompt")
    for token_id in (min(token_ids), max(token_ids)):
        if not 0 <= token_id < info.vocab_size:
            raise InvalidParameterError(
                f"The prompt has token id {token_id}, which is not in 0…{info.vocab_size - 1}.",
                "prompt",
            )


def check_sampling(params: SamplingParams, info: ModelInfo) -> None:
    """Checks sampling parameters against the model.

    Raises:
        InvalidParameterError: a parameter is out of this model's range.
    """
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(params, name)
        asked = info.vocab_size if value == ALL_TOKENS else value
        if asked is not None and asked > info.max_logprobs:
            shown = f"{value}, which is {asked}" if value == ALL_TOKENS else value
            raise InvalidParameterError(
                f"{name} may be at most {info.max_logprobs} here, got {shown}", name
            )
    if len(params.logprob_token_ids or ()) > info.max_logprobs:
        raise InvalidParameterError(
            f"logprob_token_ids may have at most {info.max_logprobs} ids here, got "
            f"{len(params.logprob_token_ids or ())}",
            "logprob_token_ids",
        )
    for name in ("stop_token_ids", "logit_bias", "allowed_token_ids", "logprob_token_ids"):
        highest = max(getattr(params, name) or (0,))
        if highest >= info.vocab_size:
            raise InvalidParameterError(
                f"{name} has token id {highest}, which is not in 0…{info.vocab_size - 1}", name
            )


def check_num_logprobs(params: SamplingParams, num_prompt_tokens: int, max_tokens: int) -> None:
    """Checks how many log probabilities all positions of a request may have together.

    Raises:
        InvalidParameterError: too many.
    """
    if problem := excess(params, num_prompt_tokens, max_tokens):
        is_prompt = (params.prompt_logprobs or 0) > (params.logprobs or 0)
        raise InvalidParameterError(problem, "prompt_logprobs" if is_prompt else "logprobs")


def with_numbers(params: SamplingParams, info: ModelInfo) -> SamplingParams:
    """The parameters with the size of the vocabulary where log probabilities of all tokens are
    asked for."""
    changes = {
        name: info.vocab_size
        for name in ("logprobs", "prompt_logprobs")
        if getattr(params, name) == ALL_TOKENS
    }
    return params.with_updates(**changes) if changes else params


def truncated(
    prompt_token_ids: Sequence[int], params: SamplingParams, info: ModelInfo
) -> Sequence[int]:
    """The part of the prompt that `truncate_prompt_tokens` keeps."""
    limit = params.truncate_prompt_tokens
    if limit is None:
        return prompt_token_ids
    if limit == TO_THE_MODELS_LENGTH:
        limit = max(1, info.max_model_len - (params.max_tokens or 1))
    if params.truncation_side == "right":
        return prompt_token_ids[:limit]
    return prompt_token_ids[-limit:]


def check_priority(priority: int) -> None:
    """Checks that a priority fits 32 bits, as the scheduler's protocol requires.

    Raises:
        InvalidParameterError: it does not.
    """
    if not -(2**31) <= priority < 2**31:
        raise InvalidParameterError(f"priority is out of range: {priority}", "priority")


def resolve_max_tokens(
    max_tokens: int | None, num_prompt_tokens: int, info: ModelInfo, *, clamp: bool
) -> int:
    """Number of tokens to generate at most; with `max_tokens=None`, the room after the prompt.

    Raises:
        InvalidParameterError: prompt and `max_tokens` exceed the context length, without `clamp`.
    """
    room = info.max_model_len - num_prompt_tokens
    if max_tokens is None:
        return room
    if max_tokens > room and not clamp:
        raise InvalidParameterError(
            f"This model's maximum context length is {info.max_model_len} tokens. However, you "
            f"requested {num_prompt_tokens + max_tokens} tokens ({num_prompt_tokens} in the "
            f"prompt, {max_tokens} for the answer). Shorten the prompt, or ask for fewer tokens.",
            "max_tokens",
            CONTEXT_LENGTH_EXCEEDED,
        )
    return min(max_tokens, room)
