"""Checks of arguments that Python programs give."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from taco_proto.errors import InvalidParameterError

# One value, although some of these are sequences.
NOT_LISTS = (str, bytes, bytearray, memoryview, Mapping)


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether a value is a sequence, and no text or bytes."""
    return isinstance(value, Sequence) and not isinstance(value, NOT_LISTS)


def check_type(name: str, value: object, expected: type) -> None:
    """Raises InvalidParameterError if an argument has another type."""
    if not isinstance(value, expected):
        raise InvalidParameterError(f"{name} must be {expected.__name__}, got {value!r:.80}", name)
