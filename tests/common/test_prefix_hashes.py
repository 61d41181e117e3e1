"""Hashes of prefixes: what they find is there, and not much of it is missed."""

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taco_common.prefix_hashes import (
    block_hashes,
    is_landmark,
    num_known_blocks,
    prompt_hashes,
    root_hash,
)
from taco_proto.registry import HASH_BYTES, KEY_BYTES

KEY = b"k" * KEY_BYTES
BLOCK_SIZE = 2
BLOCK_BYTES = BLOCK_SIZE * 4
# Few tokens, so that prompts have beginnings in common.
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=24)


def hashes_of(prompt: Sequence[int], salt: str = "", key: bytes = KEY) -> list[bytes]:
    return prompt_hashes(key, "", salt, array("i", prompt).tobytes(), BLOCK_BYTES)


def num_common_blocks(prompt: Sequence[int], other: Sequence[int]) -> int:
    """Whole blocks that two prompts begin with, if at least one token of `prompt` is left."""
    most = min((len(prompt) - 1) // BLOCK_SIZE, len(other) // BLOCK_SIZE)
    ends = (n for n in range(most, 0, -1) if prompt[: n * BLOCK_SIZE] == other[: n * BLOCK_SIZE])
    return next(ends, 0)


@given(PROMPTS, st.lists(PROMPTS, max_size=6))
def test_the_longest_match_is_the_longest_common_prefix(
    prompt: list[int], others: list[list[int]]
) -> None:
    known = {h for other in others for h in hashes_of([*other, 9])}  # all their whole blocks
    expected = max((num_common_blocks(prompt, other) for other in others), default=0)
    assert num_known_blocks(hashes_of(prompt), known) == expected


@given(PROMPTS, st.lists(PROMPTS, max_size=6), st.sets(st.integers(0, 60)))
def test_of_fewer_hashes_a_match_is_never_longer(
    prompt: list[int], others: list[list[int]], dropped: set[int]
) -> None:
    known = [h for other in others for h in hashes_of([*other, 9])]
    fewer = {h for i, h in enumerate(known) if i not in dropped}
    hashes = hashes_of(prompt)
    assert num_known_blocks(hashes, fewer) <= num_known_blocks(hashes, set(known))


@given(st.integers(1, 4000))
def test_landmarks_find_two_thirds_of_what_is_common(num_common: int) -> None:
    """Of a prompt that leaves a cached one somewhere within."""
    found = max(d for d in range(1, num_common + 1) if is_landmark(d))
    assert 3 * found >= 2 * num_common


def test_two_landmarks_for_each_doubling() -> None:
    depths = [depth for depth in range(1, 129) if is_landmark(depth)]
    assert depths == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128]


def test_one_token_at_least_is_left_to_compute() -> None:
    for length in range(1, 9):
        assert len(hashes_of(range(length))) == (length - 1) // BLOCK_SIZE


def test_a_hash_chain_continues_another_one() -> None:
    tokens = array("i", range(12)).tobytes()
    whole = block_hashes(root_hash(KEY, "", ""), tokens, BLOCK_BYTES)
    front = block_hashes(root_hash(KEY, "", ""), tokens[: 2 * BLOCK_BYTES], BLOCK_BYTES)
    assert front + block_hashes(front[-1], tokens[2 * BLOCK_BYTES :], BLOCK_BYTES) == whole
    assert all(len(value) == HASH_BYTES for value in whole)


@pytest.mark.parametrize(
    ("adapter", "salt", "key"),
    [("", "s", KEY), ("s", "", KEY), ("", "", b"K" * KEY_BYTES)],
)
def test_namespaces_and_keys_have_nothing_in_common(adapter: str, salt: str, key: bytes) -> None:
    tokens = array("i", range(20)).tobytes()
    known = set(prompt_hashes(KEY, "", "", tokens, BLOCK_BYTES))
    other = prompt_hashes(key, adapter, salt, tokens, BLOCK_BYTES)
    assert num_known_blocks(other, known) == 0


def test_an_adapter_is_not_mistaken_for_the_beginning_of_a_salt() -> None:
    assert root_hash(KEY, "a", "b") != root_hash(KEY, "", "ab") != root_hash(KEY, "ab", "")
