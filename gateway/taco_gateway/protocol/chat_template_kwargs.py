"""`chat_template_kwargs`: a client's variables for the chat template, limited plain JSON."""

from array import array
from typing import Any

MAX_VALUES = 1024
MAX_CHARS = 2**16
MAX_DEPTH = 8


def bounded_kwargs(
    kwargs: dict[str, Any],
    *,
    max_values: int = MAX_VALUES,
    max_chars: int = MAX_CHARS,
    max_depth: int = MAX_DEPTH,
) -> dict[str, Any]:
    """Checks the variables, and turns packed integers of the parser process back into lists.

    Raises:
        ValueError: they are too deep, too many or too long.
    """
    num_values = num_chars = 0
    holders: list[tuple[dict[Any, Any] | list[Any], int]] = [(kwargs, 1)]
    while holders:
        holder, depth = holders.pop()
        if depth > max_depth:
            raise ValueError(f"may be at most {max_depth} levels deep")
        num_values += len(holder)
        if num_values > max_values:
            raise ValueError(f"may have at most {max_values} values")
        items = list(holder.items() if isinstance(holder, dict) else enumerate(holder))
        for key, value in items:
            num_chars += len(key) if isinstance(key, str) else 0
            if isinstance(value, array):
                value = holder[key] = value.tolist()
            if isinstance(value, str):
                num_chars += len(value)
            elif isinstance(value, dict | list):
                holders.append((value, depth + 1))
        if num_chars > max_chars:
            raise ValueError(f"may have at most {max_chars} characters")
    return kwargs
