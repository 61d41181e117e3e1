"""What flows between the scheduler and a worker about KV blocks beside the device: the host tier
(the worker's memory) and the disk tier below it. The scheduler knows what lies where; a worker
copies as it is told."""

from dataclasses import dataclass

KEY_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBlock:
    """A block of the disk tier.

    Attributes:
        key: 16 bytes, a hash of the block's tokens and of all that stands before them.
        parent: the key of the block before it; empty: it is the first one of a prefix.
        token_ids: packed little-endian int32, a block of them.
    """

    key: bytes
    parent: bytes
    adapter: str
    cache_salt: str
    token_ids: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCommand:
    """What the worker's disk tier is to do: writes, then reads, then deletes, each in order.

    A host block that is written from or read into stays as it is until the report of its key. The
    first command to a worker that has attached, which may be empty, is answered with what its
    directory holds before anything is done.

    Attributes:
        writes: from a host block to a file.
        reads: from the file of a key to a host block.
        deletes: keys whose files go; nothing is reported of them.
    """

    writes: tuple[tuple[int, StoredBlock], ...] = ()
    reads: tuple[tuple[bytes, int], ...] = ()
    deletes: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReport:
    """What has become of commands, and first of all, what the worker's directory holds.

    Attributes:
        found: parents before their children.
        is_complete: no more of `found` will come.
        written, read: keys of what was done.
        read_seconds: what reading those took.
        failed: keys of writes and reads that could not be. There is no such file any more.
    """

    found: tuple[StoredBlock, ...] = ()
    is_complete: bool = False
    written: tuple[bytes, ...] = ()
    read: tuple[bytes, ...] = ()
    read_seconds: float = 0.0
    failed: tuple[bytes, ...] = ()
