"""The disk tier on the worker: writes and reads KV blocks as files, in a background thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue

from torch import Tensor

from taco_proto.kv_tiers import StoreCommand, StoredBlock, StoreReport
from taco_worker.devices.byte_units import mebibytes
from taco_worker.kv_tiers.store_directory import StoreDirectory

logger = logging.getLogger("taco.worker")

Report = Callable[[StoreReport], None]

_FOUND_IN_REPORT = 1024
_DONE_IN_REPORT = 16
_SECONDS_BETWEEN_WARNINGS = 60.0


class DiskBlockStore:
    """Runs the scheduler's store commands in order, in one background thread.

    Before the first command after a `reset` it reports the blocks in the directory.

    Attributes:
        num_blocks: the maximum number of files.
    """

    def __init__(self, directory: StoreDirectory, host_rows: Tensor, num_blocks: int) -> None:
        """
        Args:
            host_rows: uint8 [number of host blocks, bytes of a block].
        """
        self.num_blocks = num_blocks
        self._directory = directory
        self._rows = host_rows.numpy()
        self._keys: set[bytes] = set()  # keys of the existing files
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._session = 0  # jobs of earlier sessions are dropped
        self._listed_session = -1
        self._has_listed = False
        self._file_lock = threading.Lock()  # held during each file operation
        self._last_warning = -_SECONDS_BETWEEN_WARNINGS
        self._num_failures = 0
        threading.Thread(target=self._run, name="kv-store", daemon=True).start()

    def submit(self, command: StoreCommand, report: Report) -> None:
        """Queue a command; `report` is called in the background thread."""
        self._jobs.put(_Job(command, report, self._session))

    def reset(self) -> None:
        """Drop all commands; after it returns no host block is read or written any more."""
        with self._file_lock:
            self._session += 1

    def close(self) -> None:
        """Drop all commands and release the directory for another worker."""
        with self._file_lock:
            self._session += 1
            self._directory.close()
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._do(job)
            except Exception:  # the next command may succeed
                logger.exception("a command of the disk tier failed")

    def _do(self, job: _Job) -> None:
        if self._listed_session != job.session and not self._list(job):
            return
        command, pending = job.command, _PendingReport(job.report)
        works = [partial(self._write, pending, source, block) for source, block in command.writes]
        works += [partial(self._read, pending, key, target) for key, target in command.reads]
        works += [partial(self._delete, key) for key in command.deletes]
        for work in works:
            with self._file_lock:
                if job.session != self._session:
                    return
                work()
            pending.send(at_least=_DONE_IN_REPORT)
        pending.send()

    def _list(self, job: _Job) -> bool:
        """Report the existing blocks; returns whether the job's session is still current."""
        self._keys.clear()
        found: list[StoredBlock] = []
        scan = self._directory.scan(self.num_blocks)
        while True:
            with self._file_lock:
                if job.session != self._session:
                    return False
                try:
                    block = next(scan)
                except (StopIteration, OSError):
                    break
            if block is not None:
                self._keys.add(block.key)
                found.append(block)
            if len(found) == _FOUND_IN_REPORT:
                job.report(StoreReport(found=tuple(found)))
                found.clear()
        self._listed_session = job.session
        job.report(StoreReport(found=tuple(found), is_complete=True))
        if not self._has_listed:
            self._has_listed = True
            threading.Thread(target=self._log_other_files, name="kv-count", daemon=True).start()
        return True

    def _log_other_files(self) -> None:
        num_bytes = 0
        with suppress(OSError):  # somebody deletes them
            num_bytes = self._directory.num_other_bytes()
        if num_bytes:
            logger.warning(
                "%s of KV blocks below %s are of other weights or settings: delete their "
                "directories if nothing needs them",
                mebibytes(num_bytes),
                self._directory.root,
            )

    def _write(self, pending: _PendingReport, host_block: int, block: StoredBlock) -> None:
        try:
            if block.key not in self._keys and len(self._keys) >= self.num_blocks:
                raise ValueError(f"the disk tier is full: {self.num_blocks} files")
            self._directory.write(block, self._payload(host_block))
        except (OSError, ValueError) as error:
            self._fail(pending, block.key, error)
        else:
            self._keys.add(block.key)
            pending.written.append(block.key)

    def _read(self, pending: _PendingReport, key: bytes, host_block: int) -> None:
        started_at = time.perf_counter()
        try:
            self._directory.read(key, self._payload(host_block))
        except (OSError, ValueError) as error:
            self._fail(pending, key, error)
        else:
            pending.read.append(key)
            pending.read_seconds += time.perf_counter() - started_at

    def _delete(self, key: bytes) -> None:
        self._keys.discard(key)
        self._directory.delete(key)

    def _payload(self, host_block: int) -> memoryview:
        if not 0 <= host_block < self._rows.shape[0]:
            raise ValueError(f"there is no host block {host_block}")
        return memoryview(self._rows[host_block])

    def _fail(self, pending: _PendingReport, key: bytes, error: Exception) -> None:
        self._delete(key)
        pending.failed.append(key)
        self._num_failures += 1
        now = time.monotonic()
        if now - self._last_warning >= _SECONDS_BETWEEN_WARNINGS:
            self._last_warning = now
            reason = error.strerror if isinstance(error, OSError) else error
            logger.warning(
                "storing or reading a KV block failed: %s (%d so far); its tokens are recomputed",
                reason,
                self._num_failures,
            )


@dataclass(frozen=True, slots=True)
class _Job:
    command: StoreCommand
    report: Report
    session: int


@dataclass(slots=True)
class _PendingReport:
    """Results since the last report."""

    report: Report
    written: list[bytes] = field(default_factory=list)
    read: list[bytes] = field(default_factory=list)
    read_seconds: float = 0.0
    failed: list[bytes] = field(default_factory=list)

    def send(self, at_least: int = 1) -> None:
        columns = (self.written, self.read, self.failed)
        if sum(map(len, columns)) < at_least:
            return
        written, read, failed = map(tuple, columns)
        for column in columns:
            column.clear()
        seconds, self.read_seconds = self.read_seconds, 0.0
        self.report(StoreReport(written=written, read=read, read_seconds=seconds, failed=failed))
