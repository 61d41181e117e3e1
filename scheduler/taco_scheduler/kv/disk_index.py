"""The disk tier: which blocks the worker has as files, and what it is to write, read and delete.

A file is named by a hash of its block's tokens and of all that stands before them, so that it is
found again by whoever starts the server next. Here files are found by their tokens, not by hashes.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

from taco_proto.kv_tiers import KEY_BYTES, StoreCommand, StoredBlock, StoreReport
from taco_scheduler.kv.namespace import CacheNamespace


@dataclass(slots=True, eq=False)
class DiskFile:
    """A block that is a file, or about to be one.

    Attributes:
        parent: None: it is the first one of a prefix.
        children: by their packed token ids.
        is_kept: it makes no room for others.
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
    """The map of the files, which are closed under prefixes: a file's parent is one, too.

    It knows nothing until the worker has reported what its directory holds, which the first command
    asks for. When there are as many files as there may be, the leaf goes that was used least
    recently. Commands and reports refer to host blocks; whose they are is the caller's matter.

    Attributes:
        is_known: the worker has reported all that there is.
        keeps_all: what is used or written from now on makes no room for others.
        outcomes: of blocks that were to be written or read, so far.
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
        self._writing: dict[bytes, int] = {}  # to the host block
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
        """What `walk` just found was used."""
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
        """Has blocks written that continue a prefix, as long as there is room.

        Args:
            parent: the file behind which the first one belongs.
            blocks: host blocks, which must stay as they are until the report, and token ids.

        Returns:
            The new files, fewer than there are blocks if there is no room for more.
        """
        writes, files = [], []
        for host_block, token_ids in blocks:
            block = _stored_block(namespace, parent, token_ids)
            # One of that name may be under way that was given up with its parent.
            if block.key in self._writing or not self._has_room(parent):
                break
            parent = self._add(block, parent, is_written=False)
            self._writing[block.key] = host_block
            files.append(parent)
            writes.append((host_block, block))
        if writes:
            self._commands.append(StoreCommand(writes=tuple(writes)))
        return files

    def read(self, reads: list[tuple[bytes, int]]) -> None:
        """Has files read into host blocks, which nobody may use until the report."""
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
        """What has become of commands.

        Returns:
            The host blocks that are not needed any more, and those that were read, by key.
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

    def _has_room(self, protected: DiskFile | None) -> bool:
        """For a file more, after the oldest one has gone if need be."""
        if len(self._files) < self._max_files:
            return True
        for key, file in self._files.items():
            may_go = file.is_written and not file.children and not file.is_kept
            if may_go and file is not protected and key not in self._reading:
                self._remove(file)
                self._delete([key])
                return True
        return False

    def _lose(self, key: bytes) -> None:
        """A file is gone, and what continues it is of no use without it."""
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
