"""Hashes of token prefixes, by which a gateway estimates which scheduler has a prompt cached.

The hash of a block covers all blocks before it: the hash of the previous block is its key (the hash
chain of vLLM's automatic prefix caching). The first block's key covers the namespace, so that
tenants' prefixes differ. With a set of hashes, the longest cached prefix of a prompt takes one
look-up a block. Hashes only decide routing: the prefix cache compares the tokens themselves.
"""

from collections.abc import Container, Sequence
from hashlib import blake2b

from taco_proto.registry import HASH_BYTES


def root_hash(key: bytes, adapter: str, cache_salt: str) -> bytes:
    """The hash of a namespace's empty prefix; `key` is a secret that all schedulers share."""
    name = f"{len(adapter)}:{adapter}{cache_salt}".encode()
    return blake2b(name, key=key, digest_size=HASH_BYTES).digest()


def block_hashes(parent: bytes, token_ids: bytes | memoryview, block_bytes: int) -> list[bytes]:
    """The hashes of the prefixes that end with each whole block of `token_ids`.

    Args:
        parent: the hash of the prefix before them.
        token_ids: packed int32.
        block_bytes: size of a block's packed token ids.
    """
    view = memoryview(token_ids).cast("B")
    hashes: list[bytes] = []
    for end in range(block_bytes, len(view) + 1, block_bytes):
        block = view[end - block_bytes : end]
        parent = blake2b(block, key=parent, digest_size=HASH_BYTES).digest()
        hashes.append(parent)
    return hashes


def prompt_hashes(
    key: bytes, adapter: str, cache_salt: str, token_ids: bytes, block_bytes: int
) -> list[bytes]:
    """The hashes of the prompt's prefixes that may be cached, shortest first.

    At least one token is left to compute, so that a whole prompt of full blocks has one hash less.
    """
    root = root_hash(key, adapter, cache_salt)
    # Without the last byte, the last token's block is not full.
    return block_hashes(root, memoryview(token_ids)[:-1], block_bytes)


def num_known_blocks(hashes: Sequence[bytes], known: Container[bytes]) -> int:
    """Blocks of the longest prefix in `known`; entry i of `hashes` covers i + 1 blocks."""
    return next((i for i in range(len(hashes), 0, -1) if hashes[i - 1] in known), 0)


def is_landmark(num_blocks: int) -> bool:
    """Whether prefixes of this length are published inside a longer cached prefix.

    The lengths are 1, 2, 3, 4, 6, 8, 12, 16, 24, … blocks: two hashes for each doubling. If a
    prompt shares only a part of a longer cached prefix, at least two thirds of it are found.
    """
    odd = num_blocks // (num_blocks & -num_blocks)
    return odd == 1 or (odd == 3 and num_blocks >= 3)
