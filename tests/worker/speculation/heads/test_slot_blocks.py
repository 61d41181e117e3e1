"""Block tables of a draft head against plain lists of tokens."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from support.plans import ints
from taco_worker.speculation.heads.slot_blocks import BLOCK_SIZE, SlotBlocks

NUM_SLOTS = 3
MAX_TOKENS = 1000


class Memory:
    """One number per token, in blocks.

    Attributes:
        data: int [num_blocks * BLOCK_SIZE].
        sizes: the numbers of blocks that were asked for.
    """

    def __init__(self) -> None:
        self.data = np.zeros(0, dtype=np.int64)
        self.sizes: list[int] = []

    def allocate(self, num_blocks: int, keeps: bool) -> None:
        kept = self.data if keeps else self.data[:0]
        self.data = np.full(num_blocks * BLOCK_SIZE, -1)
        self.data[: kept.size] = kept
        self.sizes.append(num_blocks)

    def slots(self, blocks: SlotBlocks, slot: int) -> np.ndarray:
        """The places of a slot's tokens."""
        places = np.arange(blocks.num_tokens[slot])
        return blocks.tables[slot, places // BLOCK_SIZE] * BLOCK_SIZE + places % BLOCK_SIZE


def make() -> tuple[SlotBlocks, Memory]:
    memory = Memory()
    return SlotBlocks(NUM_SLOTS, MAX_TOKENS, memory.allocate), memory


def write(
    blocks: SlotBlocks, memory: Memory, slot: int, position: int, count: int, number: int
) -> None:
    """Store consecutive numbers from `number` on."""
    blocks.extend(ints([slot]), ints([position]), ints([count]))
    memory.data[memory.slots(blocks, slot)[-count:]] = np.arange(number, number + count)


writes = st.lists(
    st.dictionaries(
        # Start of the new tokens, counted back from the last one; their number; release the slot.
        st.integers(0, NUM_SLOTS - 1),
        st.tuples(st.integers(-3, 1), st.integers(1, 90), st.booleans()),
        min_size=1,
    ),
    max_size=8,
)


@given(writes)
def test_slots_hold_an_unbroken_run_of_their_last_tokens(
    history: list[dict[int, tuple[int, int, bool]]],
) -> None:
    blocks, memory = make()
    held: dict[int, tuple[int, list[int]]] = {}  # by slot: first position, numbers of tokens
    number = 1
    for step in history:
        for slot, (offset, count, is_released) in step.items():
            if is_released:
                blocks.release(ints([slot]))
                held.pop(slot, None)
            first, numbers = held.get(slot, (0, []))
            position = max(0, first + len(numbers) + offset)
            if first <= position <= first + len(numbers):
                numbers = numbers[: position - first]
            else:
                first, numbers = position, []
            taken = blocks.take(2)  # as a draft does
            write(blocks, memory, slot, position, count, number)
            memory.data[(taken[:, None] * BLOCK_SIZE + np.arange(BLOCK_SIZE)).ravel()] = -2
            blocks.give_back(taken)
            held[slot] = (first, [*numbers, *range(number, number + count)])
            number += count
    for slot, (_, numbers) in held.items():
        assert blocks.num_tokens[slot] == len(numbers)
        assert memory.data[memory.slots(blocks, slot)].tolist() == numbers


def test_blocks_of_released_slots_are_reused() -> None:
    blocks, memory = make()
    sizes = set()
    for _ in range(3):
        for slot in range(NUM_SLOTS):
            write(blocks, memory, slot, 0, 900, 0)
        sizes.add(blocks.num_blocks)
        blocks.clear()
    assert len(sizes) == 1


def test_reserved_blocks_suffice_for_any_distribution() -> None:
    blocks, memory = make()
    num_tokens = 650
    blocks.reset(-(-num_tokens // BLOCK_SIZE) + NUM_SLOTS)
    for lengths in ([648, 1, 1], [1, 1, 648], [193, 193, 193], [65, 65, 520]):
        for slot, length in enumerate(lengths):
            write(blocks, memory, slot, 0, length, slot)
        found = memory.data[memory.slots(blocks, 2)]
        assert found.tolist() == list(range(2, 2 + lengths[2]))
        blocks.clear()
    assert len(memory.sizes) == 1
