"""Fields of OpenAI's and vLLM's APIs that this server does not support.

A field that would change the answer is rejected by name, unless its value requests nothing. A field
that changes no answer is accepted and ignored, like every unknown field.
"""

from collections.abc import Mapping, Set
from typing import Any

from taco_proto.errors import InvalidParameterError

_EMPTY: tuple[object, ...] = (False, "", [], {})

# Rejected fields, with the values that request nothing and are accepted.
REJECTED: Mapping[str, tuple[object, ...]] = {
    # tools
    "tools": _EMPTY,
    "tool_choice": ("none", "auto", *_EMPTY),
    "functions": _EMPTY,
    "function_call": ("none", "auto", *_EMPTY),
    "web_search_options": (),
    # structured output
    "structural_tag": _EMPTY,
    # sampling
    "repetition_detection": _EMPTY,
    "watermarking": _EMPTY,
    # reasoning
    "include_reasoning": (True,),
    "thinking_token_budget": (-1,),
    # the prompt
    "chat_template": (),
    "documents": _EMPTY,
    "verbosity": ("medium",),
    "suffix": _EMPTY,
    "prompt_embeds": _EMPTY,
    # other media
    "audio": _EMPTY,
    "modalities": (["text"], *_EMPTY),
    "media_io_kwargs": _EMPTY,
    "mm_processor_kwargs": _EMPTY,
    # the answer
    "moderation": _EMPTY,
    "return_prompt_text": _EMPTY,
    "routed_experts_prompt_start": _EMPTY,
    # adapters and extensions
    "lora_request": _EMPTY,
    "kv_transfer_params": _EMPTY,
    "ec_transfer_params": _EMPTY,
}

# Rejected fields that change the prompt of a conversation.
PROMPT_FIELDS = frozenset({"mm_processor_kwargs"})

# Ignored fields, and why they change no answer.
ACCEPTED: Mapping[str, str] = {
    "user": "names the client's user",
    "safety_identifier": "names the client's user",
    "store": "nothing is stored",
    "metadata": "applies to stored answers",
    "service_tier": "the server has one tier; see `priority`",
    "prediction": "speed only; see speculative decoding",
    "prompt_cache_options": "caching only; see `cache_control`",
    "request_id": "the server makes the ids; see the header `x-request-id`",
    "session_id": "caching only; see `prompt_cache_key`",
    "stream_interval": "every chunk is sent at once",
    "return_token_offsets": "vLLM's render routes only",
    "return_mm_kwargs": "vLLM's render routes only",
}


def check_other_fields(given: Mapping[str, Any], names: Set[str] = REJECTED.keys()) -> None:
    """Rejects unsupported fields.

    Args:
        given: the fields of a body that are not null.
        names: the fields to look for.

    Raises:
        InvalidParameterError: a field requests an unsupported feature.
    """
    for name in given.keys() & names:
        if given[name] not in REJECTED[name]:
            raise InvalidParameterError(
                f"{name} is not supported by this server.", name, "unsupported_parameter"
            )
