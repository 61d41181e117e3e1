"""Numbers of device blocks, side by side in memory.

A prompt of a million tokens has 62,500 blocks: to count, copy and send them must cost no loop over
Python objects.
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
