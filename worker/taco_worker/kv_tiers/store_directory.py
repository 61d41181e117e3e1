"""The locked directory of a disk tier: one worker, one model, one KV layout."""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from taco_proto.errors import ConfigurationError
from taco_proto.kv_tiers import StoredBlock
from taco_worker.kv_tiers.block_file import (
    SUFFIX,
    TEMPORARY_SUFFIX,
    BlockFileError,
    describe_file,
    key_of,
    name_of,
    read_block,
    write_block,
)

logger = logging.getLogger("taco.worker")

_LOCK = "lock"
_NAME = re.compile("[0-9a-f]{32}")


class StoreDirectory:
    """Files of KV blocks of `block_bytes` each, below `root`.

    Workers of the same model share `root`. The first takes the directory named by the fingerprint.
    Each further one takes a subdirectory that no other uses: the one of its name if it can, else
    one that any worker left. So blocks are found again, whatever the names and their order.

    Attributes:
        root: the directory that all models share.
        path: the directory of the files. Only its owner can access it, since the files contain what
            users wrote.
    """

    def __init__(self, root: Path, fingerprint: bytes, block_bytes: int, worker_name: str) -> None:
        """Raises ConfigurationError: the directory cannot be created or locked."""
        self._fingerprint = fingerprint
        self._block_bytes = block_bytes
        self.root = root.expanduser()
        self._shared = self.root / fingerprint.hex()
        for path in _candidates(self._shared, re.sub(r"[^A-Za-z0-9_.-]", "_", worker_name)):
            lock = _lock(path)
            if lock is not None:
                self.path, self._lock = path, lock
                return

    def num_other_bytes(self) -> int:
        """Bytes of block files below `root` of other models, KV layouts or settings."""
        num_bytes = 0
        for directory in self.root.iterdir():
            if directory == self._shared or not _NAME.fullmatch(directory.name):
                continue
            for file in directory.rglob(f"*{SUFFIX}"):
                with suppress(OSError):  # its owner may delete it meanwhile
                    num_bytes += file.stat().st_size
        return num_bytes

    def close(self) -> None:
        """Unlock the directory."""
        os.close(self._lock)

    def write(self, block: StoredBlock, payload: memoryview) -> None:
        """Raises as `write_block` does."""
        write_block(self.path / name_of(block.key), self._fingerprint, block, payload)

    def read(self, key: bytes, payload: memoryview) -> None:
        """Raises as `read_block` does, and deletes the file then."""
        try:
            read_block(self.path / name_of(key), self._fingerprint, payload)
        except (BlockFileError, OSError):
            self.delete(key)
            raise

    def delete(self, key: bytes) -> None:
        """Delete a block's file if it exists."""
        _remove(self.path / name_of(key))

    def scan(self, max_blocks: int) -> Iterator[StoredBlock | None]:
        """Yield the stored blocks, parents before their children.

        It deletes damaged and foreign files, blocks whose prefix is incomplete, and the last blocks
        beyond `max_blocks`. It yields None after each file read, so that the caller can stop there.
        """
        children: dict[bytes, list[StoredBlock]] = defaultdict(list)
        for path in [Path(entry) for entry in os.scandir(self.path)]:
            yield None
            if (block := self._look_at(path)) is not None:
                children[block.parent].append(block)
        known = 0
        generation = children.pop(b"", [])
        while generation:
            for block in generation:
                known += 1
                if known > max_blocks:
                    self.delete(block.key)
                else:
                    yield block
            generation = [child for block in generation for child in children.pop(block.key, [])]
        for orphans in children.values():
            for block in orphans:
                yield None
                self.delete(block.key)

    def _look_at(self, path: Path) -> StoredBlock | None:
        if path.suffix == TEMPORARY_SUFFIX:
            _remove(path)
        elif key_of(path) is not None:
            try:
                return describe_file(path, self._fingerprint, self._block_bytes)
            except (BlockFileError, OSError) as error:
                logger.warning("KV block file %s ignored: %s", path.name, error)
                _remove(path)
        return None


def _candidates(shared: Path, worker_name: str) -> Iterator[Path]:
    """The directories that a worker may take, in this order; without end."""
    yield shared
    own = shared / f"worker-{worker_name}"
    existing = sorted(shared.glob("worker-*"))
    if own in existing:
        yield own
    yield from (path for path in existing if path != own and not path.is_symlink())
    yield own
    for number in itertools.count(2):
        yield own.with_name(f"{own.name}-{number}")


def _lock(path: Path) -> int | None:
    """Lock the directory and return its descriptor; None if another process holds the lock."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(directory).st_uid != os.geteuid():
                raise ConfigurationError(f"the KV directory {path} belongs to another user")
            os.fchmod(directory, 0o700)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            lock = os.open(_LOCK, flags, 0o600, dir_fd=directory)
        finally:
            os.close(directory)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise
    except BlockingIOError:
        return None
    except OSError as error:
        raise ConfigurationError(f"no KV directory {path}: {error.strerror}") from error
    return lock


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
