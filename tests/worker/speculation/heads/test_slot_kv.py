"""The KV cache of a draft head against plain lists of tokens."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from support.plans import ints
from taco_worker.speculation.heads.slot_kv import SlotKV

NUM_SLOTS = 3


def make_kv() -> SlotKV:
    return SlotKV(
        NUM_SLOTS,
        1000,
        num_kv_heads=2,
        head_dim=4,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def numbered(first: int, count: int) -> Tensor:
    """Distinct rows."""
    return torch.arange(first, first + count).float()[:, None, None].expand(-1, 2, 4)


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
    kv = make_kv()
    held: dict[int, tuple[int, list[int]]] = {}  # by slot: first position, numbers of tokens
    number = 1
    for step in history:
        for slot, (offset, count, is_released) in step.items():
            if is_released:
                kv.release(ints([slot]))
                held.pop(slot, None)
            first, numbers = held.get(slot, (0, []))
            position = max(0, first + len(numbers) + offset)
            if first <= position <= first + len(numbers):
                numbers = numbers[: position - first]
            else:
                first, numbers = position, []
            rows = numbered(number, count)
            kv.write(ints([slot]), ints([position]), ints([count]), rows, -rows)
            held[slot] = (first, [*numbers, *range(number, number + count)])
            number += count
    if not held:
        return
    slots = ints(list(held))
    keys, values = kv.read(slots, room=2)
    assert keys.shape[1] == max(len(numbers) for _, numbers in held.values()) + 2
    for row, (_, numbers) in enumerate(held.values()):
        assert kv.num_tokens[slots[row]] == len(numbers)
        assert keys[row, : len(numbers), 0, 0].tolist() == numbers
        assert values[row, : len(numbers), 1, 3].tolist() == [-number for number in numbers]


def test_blocks_of_released_slots_are_reused() -> None:
    kv = make_kv()
    sizes = set()
    for _ in range(3):
        for slot in range(NUM_SLOTS):
            kv.write(ints([slot]), ints([0]), ints([900]), numbered(0, 900), numbered(0, 900))
        sizes.add(kv.nbytes)
        kv.clear()
    assert len(sizes) == 1


def test_reserved_blocks_suffice_for_any_distribution() -> None:
    kv = make_kv()
    num_tokens = 650
    kv.reserve(num_tokens)
    size = kv.nbytes
    assert size <= num_tokens * kv.bytes_per_token + kv.padding_bytes
    for lengths in ([648, 1, 1], [1, 1, 648], [193, 193, 193], [65, 65, 520]):
        for slot, length in enumerate(lengths):
            rows = numbered(slot, length)
            kv.write(ints([slot]), ints([0]), ints([length]), rows, -rows)
        assert kv.nbytes == size
        keys, _ = kv.read(ints([2]), room=0)
        assert keys[0, :, 0, 0].tolist() == list(range(2, 2 + lengths[2]))
        kv.clear()


def test_groups_of_rows_stay_within_their_bytes() -> None:
    kv = make_kv()
    for slot, length in enumerate([10, 90, 20]):
        kv.write(ints([slot]), ints([0]), ints([length]), numbered(0, length), numbered(0, length))
    token = kv.bytes_per_token
    assert kv.groups(ints([0, 1, 2]), 270 * token) == [slice(0, 3)]
    assert kv.groups(ints([0, 2, 1]), 269 * token) == [slice(0, 2), slice(2, 3)]
    assert kv.groups(ints([1, 0]), 50 * token) == [slice(0, 1), slice(1, 2)]
