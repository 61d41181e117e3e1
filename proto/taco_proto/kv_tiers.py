"""The messages of the disk tier: commands to a worker, and its reports.

KV blocks evicted from the device go to the host tier (the worker's memory), and from there to the
disk tier. The scheduler knows which block is in which tier; a worker copies blocks on command.
"""

from dataclasses import dataclass

KEY_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBlock:
    """A block of the disk tier.

    Attributes:
        key: 16 bytes: hash of the tokens of the block and of all blocks before it.
        parent: key of the block before it; empty: it is the first block of a prefix.
        token_ids: of one block, packed little-endian int32.
    """

    key: bytes
    parent: bytes
    adapter: str
    cache_salt: str
    token_ids: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCommand:
    """A command to the disk tier: writes, then reads, then deletes, each in order.

    A host block that is written or read into is not reused until its key was reported. The worker
    answers the first command, which may be empty, with the blocks in its directory.

    Attributes:
        writes: from a host block to a file.
        reads: from the file of a key to a host block.
        deletes: keys of files to delete; they are not reported.
    """

    writes: tuple[tuple[int, StoredBlock], ...] = ()
    reads: tuple[tuple[bytes, int], ...] = ()
    deletes: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReport:
    """Results of commands, and before them the blocks in the worker's directory.

    Attributes:
        found: parents before their children.
        is_complete: `found` is complete; no later report has more.
        written, read: keys of finished writes and reads.
        read_seconds: duration of these reads, in seconds.
        failed: keys of failed writes and reads; their files no longer exist.
    """

    found: tuple[StoredBlock, ...] = ()
    is_complete: bool = False
    written: tuple[bytes, ...] = ()
    read: tuple[bytes, ...] = ()
    read_seconds: float = 0.0
    failed: tuple[bytes, ...] = ()
