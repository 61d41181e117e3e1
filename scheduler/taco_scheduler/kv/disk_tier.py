"""The disk tier: which blocks the worker has as files, and what it is to write, read and delete.

A file is named by a hash of its block's tokens and of all that stands before them, so that it is
found again by whoever starts the server next. What is found is compared token by token, too.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b

from taco_proto.kv_tiers import KEY_BYTES, StoreCommand, StoredBlock, StoreReport
from taco_scheduler.kv.namespace import CacheNamespace


@dataclass(slots=True, eq=False)
class _File:
    block: StoredBlock
    is_written: bool
    children: set[bytes] = field(default_factory=set)


def chain(namespace: CacheNamespace, tokens: bytes, block_bytes: int) -> Iterator[StoredBlock]:
    """The blocks of a prefix, which must be whole blocks, as files."""
    seed = repr((namespace.adapter, namespace.cache_salt)).encode()
    parent = b""
    for start in range(0, len(tokens), block_bytes):
        token_ids = tokens[start : start + block_bytes]
        key = blake2b((parent or seed) + token_ids, digest_size=KEY_BYTES).digest()
        yield StoredBlock(
            key=key,
            parent=parent,
            adapter=namespace.adapter,
            cache_salt=namespace.cache_salt,
            token_ids=token_ids,
        )
        parent = key


class DiskTier:
    """The map of the files, which are closed under prefixes: a file's parent is one, too.

    It knows nothing until the worker has reported what its directory holds, which the first command
    asks for. When there are as many files as there may be, the leaf goes that was used least
    recently. Commands and reports refer to host blocks; whose they are is the caller's matter.

    Attributes:
        is_known: the worker has reported all that there is.
    """

    def __init__(self, max_files: int, block_bytes: int) -> None:
        """`block_bytes`: size of one block's packed token ids."""
        self._max_files = max_files
        self._block_bytes = block_bytes
        self.is_known = False
        # Least recently used first, and children before their parents.
        self._files: OrderedDict[bytes, _File] = OrderedDict()
        self._writing: dict[bytes, int] = {}  # to the host block
        self._reading: dict[bytes, int] = {}
        self._commands = deque([StoreCommand()])

    @property
    def num_files(self) -> int:
        return len(self._files)

    def stored(self, blocks: list[StoredBlock]) -> int:
        """How many of the first of a prefix's blocks are files."""
        for i, block in enumerate(blocks):
            file = self._files.get(block.key)
            if file is None or not file.is_written or file.block != block:
                return i
        return len(blocks)

    def has(self, block: StoredBlock) -> bool:
        """Whether it is a file, or about to be one."""
        return block.key in self._files

    def wants(self, block: StoredBlock) -> bool:
        """Whether it is none, and may be one: its parent is."""
        is_free = block.key not in self._files and block.key not in self._writing
        return is_free and (not block.parent or block.parent in self._files)

    def is_reading(self, key: bytes) -> bool:
        return key in self._reading

    def touch(self, blocks: list[StoredBlock]) -> None:
        """These blocks of a prefix were used."""
        for block in reversed(blocks):
            if block.key in self._files:
                self._files.move_to_end(block.key)

    # --------------------------------------------------------------- commands

    def write(self, blocks: list[tuple[int, StoredBlock]]) -> int:
        """Has host blocks written, each the next of a prefix, as long as there is room; returns how
        many. They must stay as they are until the report.
        """
        writes = []
        protected = {blocks[0][1].parent} if blocks else set()
        for host_block, block in blocks:
            if len(self._files) >= self._max_files and not self._delete_oldest(protected):
                break
            self._add(block, is_written=False)
            self._writing[block.key] = host_block
            protected = {block.key}
            writes.append((host_block, block))
        if writes:
            self._commands.append(StoreCommand(writes=tuple(writes)))
        return len(writes)

    def read(self, reads: list[tuple[bytes, int]]) -> None:
        """Has files read into host blocks, which nobody may use until the report."""
        self._reading.update(reads)
        self._commands.append(StoreCommand(reads=tuple(reads)))

    def next_command(self) -> StoreCommand | None:
        return self._commands.popleft() if self._commands else None

    def take(self, report: StoreReport) -> tuple[list[int], dict[bytes, int]]:
        """What has become of commands.

        Returns:
            The host blocks that are not needed any more, and those that were read, by key.
        """
        released: list[int] = []
        loaded: dict[bytes, int] = {}
        self._take_found(report)
        for key in report.written:
            released += self._pop(self._writing, key)
            if key in self._files:
                self._files[key].is_written = True
            else:
                self._delete([key])  # its parent was lost in the meantime
        for key in report.read:
            for host_block in self._pop(self._reading, key):
                loaded[key] = host_block
        for key in report.failed:
            released += self._pop(self._writing, key) + self._pop(self._reading, key)
            self._lose(key)
        return released, loaded

    def _take_found(self, report: StoreReport) -> None:
        orphans = []
        for block in report.found:
            if block.parent and block.parent not in self._files:
                orphans.append(block.key)
            else:
                self._add(block, is_written=True)
        if report.is_complete:
            self.is_known = True
            self._files = OrderedDict(reversed(self._files.items()))
        self._delete(orphans)

    def _add(self, block: StoredBlock, *, is_written: bool) -> None:
        self._files[block.key] = _File(block, is_written)
        if block.parent:
            self._files[block.parent].children.add(block.key)

    def _delete_oldest(self, protected: set[bytes]) -> bool:
        for key, file in self._files.items():
            is_leaf = not file.children and file.is_written
            if is_leaf and key not in protected and key not in self._reading:
                self._remove(key)
                self._delete([key])
                return True
        return False

    def _lose(self, key: bytes) -> None:
        """A file is gone, and what continues it is of no use without it."""
        pending = [key] if key in self._files else []
        while pending:
            lost = pending.pop()
            pending += self._files[lost].children
            was_written = self._files[lost].is_written
            self._remove(lost)
            if was_written and lost != key:
                self._delete([lost])

    def _remove(self, key: bytes) -> None:
        parent = self._files.pop(key).block.parent
        if parent in self._files:
            self._files[parent].children.discard(key)

    def _delete(self, keys: list[bytes]) -> None:
        if keys:
            self._commands.append(StoreCommand(deletes=tuple(keys)))

    def _pop(self, under_way: dict[bytes, int], key: bytes) -> list[int]:
        return [under_way.pop(key)] if key in under_way else []
