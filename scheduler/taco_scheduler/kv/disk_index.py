"""Disk index: the files of a worker's disk tier, and the commands to write, read and delete them.

A file's key is a hash of its block's tokens and of the tokens before them, so that the files are
found again after a restart. The scheduler finds files by their tokens, not by hashes.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

from taco_proto.kv_tiers import KEY_BYTES, StoreCommand, StoredBlock, StoreReport
from taco_scheduler.kv.namespace import CacheNamespace


@dataclass(slots=True, eq=False)
class DiskFile:
    """The file of one block.

    Attributes:
        parent: file of the block before it; None for the first block of a prefix.
        is_written: the worker has reported the write as done.
        is_kept: it is not evicted.
        children: files of the next blocks, by their packed token ids.
    """

    block: StoredBlock
    parent: "DiskFile | None"
    is_written: bool
    is_kept: bool
    children: dict[bytes, "DiskFile"] = field(default_factory=dict)

    @property
    def key(self) -> bytes:
        return self.block.key


class DiskIndex:
    """The files of one worker as trees of prefixes: the parent of a file is a file, too.

    The index is empty until the worker has reported its directory. The first command requests that.
    When the number of files reaches its maximum, the least recently used leaf is evicted. Commands
    and reports name host blocks, which the caller owns.

    Attributes:
        is_known: the worker has reported all its files.
        keeps_all: files used or written from now on are not evicted.
        outcomes: blocks so far by outcome: written, read or failed.
    """

    def __init__(self, max_files: int, block_bytes: int) -> None:
        """`block_bytes`: size of one block's packed token ids."""
        self.is_known = False
        self.keeps_all = False
        self.outcomes = {"written": 0, "read": 0, "failed": 0}
        self._max_files = max_files
        self._block_bytes = block_bytes
        # Least recently used first, and children before their parents.
        self._files: OrderedDict[bytes, DiskFile] = OrderedDict()
        self._firsts: dict[tuple[str, str, bytes], DiskFile] = {}
        self._writing: dict[bytes, int] = {}  # host blocks by key
        self._reading: dict[bytes, int] = {}
        self._commands = deque([StoreCommand()])

    @property
    def num_files(self) -> int:
        return len(self._files)

    @property
    def num_reading(self) -> int:
        return len(self._reading)

    @property
    def num_writing(self) -> int:
        return len(self._writing)

    def is_reading(self, key: bytes) -> bool:
        return key in self._reading

    def walk(
        self,
        namespace: CacheNamespace,
        tokens: bytes,
        known: list[DiskFile] | None = None,
        num_blocks: int | None = None,
    ) -> list[DiskFile]:
        """The files of a prefix's first blocks.

        Args:
            tokens: packed token ids.
            known: files that an earlier walk along the prefix found. This walk extends the list.
            num_blocks: length of the prefix; None: all whole blocks of `tokens`.
        """
        files = known or []
        while files and self._files.get(files[-1].key) is not files[-1]:
            files.pop()
        size = self._block_bytes
        end = len(tokens) // size if num_blocks is None else num_blocks
        for start in range(len(files) * size, end * size, size):
            token_ids = tokens[start : start + size]
            if files:
                file = files[-1].children.get(token_ids)
            else:
                file = self._firsts.get((namespace.adapter, namespace.cache_salt, token_ids))
            if file is None:
                break
            files.append(file)
        return files

    def touch(self, files: list[DiskFile]) -> None:
        """Mark files that `walk` found as used."""
        for file in reversed(files):
            self._files.move_to_end(file.key)
            file.is_kept |= self.keeps_all

    # --------------------------------------------------------------- commands

    def write(
        self,
        namespace: CacheNamespace,
        parent: DiskFile | None,
        blocks: Iterable[tuple[int, bytes]],
    ) -> list[DiskFile]:
        """Command writes of blocks that continue a prefix, as far as there is space.

        Args:
            parent: file of the block before the first one; None: the first one begins the prefix.
            blocks: host blocks and their token ids. The host blocks must not change until the
                worker's report.

        Returns:
            The new files, fewer than blocks if there is no space for all.
        """
        writes, files = [], []
        for host_block, token_ids in blocks:
            block = _stored_block(namespace, parent, token_ids)
            # A write with this key may be under way whose file was dropped with its parent.
            if block.key in self._writing or not self._has_space(parent):
                break
            parent = self._add(block, parent, is_written=False)
            self._writing[block.key] = host_block
            files.append(parent)
            writes.append((host_block, block))
        if writes:
            self._commands.append(StoreCommand(writes=tuple(writes)))
        return files

    def read(self, reads: list[tuple[bytes, int]]) -> None:
        """Command reads of files into host blocks, which must not be used until the report."""
        self._reading.update(reads)
        self._commands.append(StoreCommand(reads=tuple(reads)))

    def discard(self, files: list[DiskFile]) -> None:
        """Delete the files of a prefix that `walk` found, from its end up to where another file
        continues it or one is being read or written."""
        deleted = []
        for file in reversed(files):
            if file.children or not file.is_written or file.key in self._reading:
                break
            self._remove(file)
            deleted.append(file.key)
        self._delete(deleted)

    def next_command(self) -> StoreCommand | None:
        return self._commands.popleft() if self._commands else None

    def take(self, report: StoreReport) -> tuple[list[int], dict[bytes, int]]:
        """Take a report of the worker.

        Returns:
            The host blocks whose writes or reads have ended, and those that were read, by key.
        """
        released: list[int] = []
        loaded: dict[bytes, int] = {}
        self._take_found(report)
        self.outcomes["written"] += len(report.written)
        self.outcomes["read"] += len(report.read)
        self.outcomes["failed"] += len(report.failed)
        for key in report.written:
            released += self._pop(self._writing, key)
            if key in self._files:
                self._files[key].is_written = True
            else:
                self._delete([key])  # its parent was dropped in the meantime
        for key in report.read:
            for host_block in self._pop(self._reading, key):
                loaded[key] = host_block
        for key in report.failed:
            released += self._pop(self._writing, key) + self._pop(self._reading, key)
            self._drop(key)
        return released, loaded

    def _take_found(self, report: StoreReport) -> None:
        orphans = []
        for block in report.found:
            parent = self._files.get(block.parent)
            if (block.parent and parent is None) or self._child(parent, block) is not None:
                orphans.append(block.key)
            else:
                self._add(block, parent, is_written=True)
        if report.is_complete:
            self.is_known = True
            self._files = OrderedDict(reversed(self._files.items()))
        self._delete(orphans)

    def _add(self, block: StoredBlock, parent: DiskFile | None, *, is_written: bool) -> DiskFile:
        file = DiskFile(block, parent, is_written, self.keeps_all)
        self._files[block.key] = file
        if parent is None:
            self._firsts[block.adapter, block.cache_salt, block.token_ids] = file
        else:
            parent.children[block.token_ids] = file
        return file

    def _child(self, parent: DiskFile | None, block: StoredBlock) -> DiskFile | None:
        if parent is not None:
            return parent.children.get(block.token_ids)
        return self._firsts.get((block.adapter, block.cache_salt, block.token_ids))

    def _has_space(self, protected: DiskFile | None) -> bool:
        """Whether there is space for one more file, after an eviction if needed."""
        if len(self._files) < self._max_files:
            return True
        for key, file in self._files.items():
            may_go = file.is_written and not file.children and not file.is_kept
            if may_go and file is not protected and key not in self._reading:
                self._remove(file)
                self._delete([key])
                return True
        return False

    def _drop(self, key: bytes) -> None:
        """Drop a failed file and all files that continue it."""
        pending = [self._files[key]] if key in self._files else []
        while pending:
            lost = pending.pop()
            pending += lost.children.values()
            self._remove(lost)
            if lost.is_written and lost.key != key:
                self._delete([lost.key])

    def _remove(self, file: DiskFile) -> None:
        del self._files[file.key]
        block = file.block
        if file.parent is None:
            del self._firsts[block.adapter, block.cache_salt, block.token_ids]
        else:
            del file.parent.children[block.token_ids]

    def _delete(self, keys: list[bytes]) -> None:
        if keys:
            self._commands.append(StoreCommand(deletes=tuple(keys)))

    def _pop(self, under_way: dict[bytes, int], key: bytes) -> list[int]:
        return [under_way.pop(key)] if key in under_way else []


def _stored_block(
    namespace: CacheNamespace, parent: DiskFile | None, token_ids: bytes
) -> StoredBlock:
    if parent is None:
        before = repr((namespace.adapter, namespace.cache_salt)).encode()
    else:
        before = parent.key
    return StoredBlock(
        key=blake2b(before + token_ids, digest_size=KEY_BYTES).digest(),
        parent=b"" if parent is None else parent.key,
        adapter=namespace.adapter,
        cache_salt=namespace.cache_salt,
        token_ids=token_ids,
    )
