"""Token ids in requests: a list, or a packed array from the parser process."""

from array import array
from collections.abc import Sequence
from typing import TypeGuard

MAX_TOKEN_IDS = 2**21  # in one list; twice what the longest contexts take
MAX_TOKEN_ID = 2**31 - 1
_SLICE = 2**14

TokenIds = Sequence[int]


def is_token_ids(value: object) -> TypeGuard[TokenIds]:
    """Whether `value` is a non-empty list of integers; True and False do not count as integers."""
    if isinstance(value, array):
        return len(value) > 0
    return isinstance(value, list) and set(map(type, value)) == {int}


def are_in_range(token_ids: TokenIds, highest: int = MAX_TOKEN_ID) -> bool:
    """Whether all ids are in 0…`highest`.

    It works in slices, because `min` and `max` hold the interpreter lock for the whole list.
    """
    slices = (token_ids[i : i + _SLICE] for i in range(0, len(token_ids), _SLICE))
    return all(0 <= min(piece) <= max(piece) <= highest for piece in slices)


def as_list(value: object) -> object:
    """Turns a packed array of the parser process into a list; returns other values unchanged."""
    return value.tolist() if isinstance(value, array) else value
