"""Compares packed token ids in whole blocks."""


def num_common_blocks(
    key: bytes, position: int, run: bytes | memoryview, block_bytes: int, num_known: int = 0
) -> int:
    """Number of leading blocks of `run` that equal those of `key` at `position`, both in bytes.

    Compares memory, at most O(log blocks) times.

    Args:
        num_known: leading blocks that are known to be equal.
    """
    if key.startswith(run, position):
        return len(run) // block_bytes
    equal = num_known
    unequal = min(len(run), len(key) - position) // block_bytes + 1
    while unequal - equal > 1:
        middle = (equal + unequal) // 2
        start = equal * block_bytes
        if key.startswith(run[start : middle * block_bytes], position + start):
            equal = middle
        else:
            unequal = middle
    return equal
