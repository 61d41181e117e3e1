"""Token ids in requests. A list that another process has parsed comes as a packed array."""

from array import array
from collections.abc import Sequence
from typing import TypeGuard

MAX_TOKEN_IDS = 2**21  # in one list; twice what the longest contexts take
MAX_TOKEN_ID = 2**31 - 1

TokenIds = Sequence[int]


def is_token_ids(value: object) -> TypeGuard[TokenIds]:
    """Whether `value` is a list of integers and not empty; True and False are none."""
    if isinstance(value, array):
        return len(value) > 0
    return isinstance(value, list) and set(map(type, value)) == {int}


def as_list(value: object) -> object:
    """A list where `value` is one that another process has packed; else `value` itself."""
    return value.tolist() if isinstance(value, array) else value
