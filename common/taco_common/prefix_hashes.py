"""Names for prefixes of token ids, by which a gateway guesses who has a prompt cached.

The hash of a block covers all that stands before it: the hash of the block before is its key (the
chain of vLLM's automatic prefix caching), and the first one's key covers the namespace, so that
tenants' prefixes stay apart. A set of such hashes answers how long a prompt's longest prefix is
that it holds in one look-up a block. Nothing but a routing decision hangs on it: whoever reads
cached KV compares the tokens themselves.
"""

from collections.abc import Container, Sequence
from hashlib import blake2b

from taco_proto.registry import HASH_BYTES


def root_hash(key: bytes, adapter: str, cache_salt: str) -> bytes:
    """The hash of the empty prefix of a namespace; `key` is a secret of those who compare."""
    name = f"{len(adapter)}:{adapter}{cache_salt}".encode()
    return blake2b(name, key=key, digest_size=HASH_BYTES).digest()


def block_hashes(parent: bytes, token_ids: bytes | memoryview, block_bytes: int) -> list[bytes]:
    """The hashes of the prefixes that end with each whole block of `token_ids`.

    Args:
        parent: the hash of what stands before them.
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
    """The hashes of a prompt's prefixes that a cache can be asked for: one token at least is left
    to compute.
    """
    root = root_hash(key, adapter, cache_salt)
    # Without a byte of the last token, its block is not whole.
    return block_hashes(root, memoryview(token_ids)[:-1], block_bytes)


def num_known_blocks(hashes: Sequence[bytes], known: Container[bytes]) -> int:
    """The blocks of the longest prefix that is known; of `hashes`, entry i has i + 1 blocks."""
    return next((i for i in range(len(hashes), 0, -1) if hashes[i - 1] in known), 0)


def is_landmark(num_blocks: int) -> bool:
    """Whether a prefix of that length stands for those between it and the next one.

    Lengths are 1, 2, 3, 4, 6, 8, 12, 16, 24, …: of a prompt that leaves a longer cached one
    somewhere, at least two thirds of what they have in common are found, with two hashes for each
    doubling of the length.
    """
    odd = num_blocks // (num_blocks & -num_blocks)
    return odd == 1 or (odd == 3 and num_blocks >= 3)
