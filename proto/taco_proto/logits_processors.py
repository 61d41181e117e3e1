"""Logits processors of a request: functions, or names of processors that the worker has loaded."""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from taco_proto.errors import InvalidParameterError

PARAM = "logits_processors"
EXTRA_ARGS = "extra_args"
MAX_PROCESSORS = 64
MAX_PROCESSOR_NAME_CHARS = 256
MAX_EXTRA_ARGS_BYTES = 2**14  # they travel with a request each time that it joins a batch

# Takes the output's token ids and the logits [vocab_size] of the next token, or the prompt's token
# ids, the output's and the logits. Returns the logits, changed or new.
LogitsProcessor = Callable[..., Any]


def processor_name(processor: "LogitsProcessor | str") -> str:
    """The name of a processor in messages."""
    if isinstance(processor, str):
        return processor
    return str(getattr(processor, "__qualname__", type(processor).__qualname__))


def reads_prompt(processor: LogitsProcessor) -> bool:
    """Whether a processor takes three arguments, the first of which is the prompt.

    Raises:
        InvalidParameterError: it takes neither two nor three positional arguments.
    """
    try:
        signature = inspect.signature(processor)
    except (TypeError, ValueError):
        raise InvalidParameterError(
            f"{PARAM}: {processor!r:.80} is not a function with a known signature", PARAM
        ) from None
    for count in (3, 2):
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        return count == 3
    raise InvalidParameterError(
        f"{PARAM}: {processor_name(processor)}{signature} must take (output_token_ids, logits) or "
        "(prompt_token_ids, output_token_ids, logits)",
        PARAM,
    )


def checked_processors(given: object) -> "tuple[LogitsProcessor | str, ...]":
    """The processors of a request.

    Raises:
        InvalidParameterError: the value is not a list of functions and names.
    """
    if given is None:
        return ()
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise InvalidParameterError(f"{PARAM} must be a list, got {given!r:.80}", PARAM)
    if len(given) > MAX_PROCESSORS:
        raise InvalidParameterError(
            f"{PARAM} takes at most {MAX_PROCESSORS} entries, got {len(given)}", PARAM
        )
    for processor in given:
        if not isinstance(processor, str):
            reads_prompt(processor)
        elif not 0 < len(processor) <= MAX_PROCESSOR_NAME_CHARS:
            raise InvalidParameterError(
                f"{PARAM}: a name must have 1 to {MAX_PROCESSOR_NAME_CHARS} characters", PARAM
            )
    return tuple(given)


def names_of(processors: "Sequence[LogitsProcessor | str]") -> list[str]:
    """The processors of a request that travels to another process.

    Raises:
        InvalidParameterError: one is a function, which cannot travel.
    """
    for processor in processors:
        if not isinstance(processor, str):
            raise InvalidParameterError(
                f"{PARAM}: the function {processor_name(processor)} runs only in the engine's own "
                "process; load a class with --logits-processors and name it",
                PARAM,
            )
    return [str(processor) for processor in processors]


def extra_args_to_json(arguments: Mapping[str, Any] | None) -> str:
    """The arguments of processors as JSON; empty: none.

    Raises:
        InvalidParameterError: they are not a JSON object, or are too large.
    """
    if not arguments:
        return ""
    if not isinstance(arguments, Mapping) or not all(isinstance(name, str) for name in arguments):
        raise InvalidParameterError(f"{EXTRA_ARGS} must map names to values", EXTRA_ARGS)
    try:
        text = json.dumps(dict(arguments), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidParameterError(f"{EXTRA_ARGS} is not JSON: {error}", EXTRA_ARGS) from None
    if len(text) > MAX_EXTRA_ARGS_BYTES:
        raise InvalidParameterError(
            f"{EXTRA_ARGS} may have at most {MAX_EXTRA_ARGS_BYTES} bytes of JSON, got {len(text)}",
            EXTRA_ARGS,
        )
    return text


def extra_args_from_json(text: str) -> dict[str, Any] | None:
    """Arguments from their JSON; None: none.

    Raises:
        InvalidParameterError: the text is not a JSON object, or is too large.
    """
    if not text:
        return None
    if len(text) > MAX_EXTRA_ARGS_BYTES:
        raise InvalidParameterError(
            f"{EXTRA_ARGS} may have at most {MAX_EXTRA_ARGS_BYTES} bytes of JSON", EXTRA_ARGS
        )
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidParameterError(f"{EXTRA_ARGS} is not JSON", EXTRA_ARGS) from None
    if not isinstance(value, dict):
        raise InvalidParameterError(f"{EXTRA_ARGS} must be a JSON object", EXTRA_ARGS)
    return value
