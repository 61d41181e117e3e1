"""Fields that `POST /v1/responses` rejects: other routes' names, and features of stored responses.

A field is accepted with a value that requests nothing. `unsupported_fields` has the fields that all
routes reject.
"""

from collections.abc import Mapping, Set
from typing import Any

from taco_gateway.protocol.unsupported_fields import REJECTED, check_other_fields
from taco_proto.errors import InvalidParameterError

# Fields of chat, and where this route has them.
_MOVED: Mapping[str, str] = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "logprobs": 'include: ["message.output_text.logprobs"]',
    "functions": "tools",
    "function_call": "tool_choice",
}
# Fields of responses that a server stores, with the values that request nothing.
_STATEFUL: Mapping[str, tuple[object, ...]] = {
    "previous_response_id": ("",),
    "conversation": ("",),
    "background": (False,),
    "prompt": (),
    "context_management": ([],),
}
_OTHERS: Mapping[str, tuple[object, ...]] = {
    "truncation": ("disabled",),
    "n": (1,),
    "best_of": (1,),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "early_stopping": (False,),
    "echo": (False,),
    "prompt_logprobs": (),
    "detokenize": (True,),
    "return_token_ids": (False,),
}
_HINTS: Mapping[str, str] = {
    "truncation": "only 'disabled' is. Send fewer items, or set truncate_prompt_tokens",
}
_CODE = "unsupported_parameter"


def rejected_fields(supported: Set[str]) -> dict[str, tuple[object, ...]]:
    """The rejected fields, with the values that are accepted.

    Args:
        supported: the fields of the request's schema.
    """
    general = {name: values for name, values in REJECTED.items() if name not in supported}
    return {**general, **dict.fromkeys(_MOVED, ()), **_STATEFUL, **_OTHERS}


def check_rejected_fields(given: Mapping[str, Any], supported: Set[str]) -> None:
    """Rejects unsupported fields.

    Args:
        given: the fields of a body that are not null.
        supported: the fields of the request's schema.

    Raises:
        InvalidParameterError: a field requests an unsupported feature.
    """
    for name, place in _MOVED.items():
        if name in given:
            raise InvalidParameterError(
                f"{name} is no field of this route: use {place}.", name, _CODE
            )
    for name, neutral in _STATEFUL.items():
        if name in given and given[name] not in neutral:
            raise InvalidParameterError(
                f"{name} is not supported: this server keeps no state between requests. Send the "
                "items of the conversation as input.",
                name,
                _CODE,
            )
    for name, neutral in _OTHERS.items():
        if name in given and given[name] not in neutral:
            hint = _HINTS.get(name, f"accepted values are {list(neutral)} and null")
            message = f"{name}={given[name]!r:.60} is not supported by this route: {hint}."
            raise InvalidParameterError(message, name, _CODE)
    check_other_fields(given, REJECTED.keys() - supported - _MOVED.keys())
