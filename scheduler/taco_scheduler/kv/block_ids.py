"""Arrays of block numbers.

A prompt of a million tokens has 62,500 blocks of 16 tokens. An array counts, copies and sends them
without a loop over Python objects.
"""

from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    BlockIds = array[int]
else:  # Python 3.11 has no array[int]
    BlockIds = array


def block_ids(blocks: Iterable[int] = ()) -> BlockIds:
    return array("i", blocks)
