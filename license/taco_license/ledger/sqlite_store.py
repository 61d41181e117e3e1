"""The SQLite database of a license server: license, clock, leases and audit log.

Each change is one transaction, so a server that is killed during a change restarts with the state
before it. Only one process at a time can use a store: it locks a file beside the database.
"""

import fcntl
import logging
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from taco_license.errors import SettingError

DATABASE = "license.db"
LOCK = "lock"
BUSY_SECONDS = 5.0  # a write waits this long for a reader of the audit log
VERSION = 1

logger = logging.getLogger("taco.license")

_SCHEMA = f"""
BEGIN;
CREATE TABLE license (
    only_one INTEGER PRIMARY KEY CHECK (only_one = 1),
    serial INTEGER NOT NULL,
    document BLOB NOT NULL
);
CREATE TABLE clock (
    only_one INTEGER PRIMARY KEY CHECK (only_one = 1),
    latest REAL NOT NULL
);
CREATE TABLE lease (gpu TEXT PRIMARY KEY, instance TEXT NOT NULL, started INTEGER NOT NULL);
CREATE TABLE audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    time TEXT NOT NULL,
    event TEXT NOT NULL,
    gpu TEXT,
    instance TEXT,
    detail TEXT
);
CREATE TRIGGER audit_is_never_changed BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
CREATE TRIGGER audit_is_never_deleted BEFORE DELETE ON audit
BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
PRAGMA user_version = {VERSION};
COMMIT;
"""


@dataclass(frozen=True, slots=True)
class StoredLease:
    """See `leases.Lease`."""

    gpu: str
    instance: str
    started: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """An entry of the audit log.

    Attributes:
        time: RFC 3339, from the server's license clock.
    """

    time: str
    event: str
    gpu: str | None = None
    instance: str | None = None
    detail: str | None = None


class Store:
    """The store in `directory`. The directory is created if it is missing.

    Methods raise sqlite3.Error if the disk is full or fails; nothing has changed then.

    Raises:
        SettingError: another server uses the store, or the directory or the database cannot be
            used.
    """

    def __init__(self, directory: str | Path) -> None:
        directory = Path(directory)
        self._lock = _lock(directory)
        try:
            self._connection = _open(directory / DATABASE)
        except BaseException:
            self._lock.close()
            raise

    def close(self) -> None:
        self._connection.close()
        self._lock.close()

    def document(self) -> tuple[bytes, int] | None:
        """The license file imported last, and its serial; None before the first import."""
        row = self._connection.execute("SELECT document, serial FROM license").fetchone()
        return None if row is None else (row[0], row[1])

    def replace_document(
        self, document: bytes, serial: int, latest: float, entries: Iterable[AuditEntry]
    ) -> None:
        """Replaces the license and sets the clock to `latest`. Both are on disk on return."""
        # A power failure may lose leases, since holders renew them, but not a license.
        self._connection.execute("PRAGMA synchronous = FULL")
        try:
            with self._transaction() as connection:
                connection.execute(
                    "INSERT OR REPLACE INTO license VALUES (1, ?, ?)", (serial, document)
                )
                connection.execute("INSERT OR REPLACE INTO clock VALUES (1, ?)", (latest,))
                _append(connection, entries)
        finally:
            self._connection.execute("PRAGMA synchronous = NORMAL")

    def latest(self) -> float:
        """The latest stored time in seconds since the epoch; 0 if none is stored."""
        row = self._connection.execute("SELECT latest FROM clock").fetchone()
        return 0.0 if row is None else row[0]

    def set_latest(self, latest: float) -> None:
        with self._transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO clock VALUES (1, ?)", (latest,))

    def leases(self) -> list[StoredLease]:
        rows = self._connection.execute("SELECT gpu, instance, started FROM lease")
        return [StoredLease(*row) for row in rows]

    def change_leases(
        self,
        entries: Iterable[AuditEntry],
        *,
        put: Iterable[StoredLease] = (),
        drop: Iterable[str] = (),
    ) -> None:
        """Writes the leases `put`, deletes those of the GPUs `drop`, and audits `entries`."""
        with self._transaction() as connection:
            connection.executemany("DELETE FROM lease WHERE gpu = ?", ((gpu,) for gpu in drop))
            connection.executemany(
                "INSERT OR REPLACE INTO lease VALUES (?, ?, ?)",
                ((lease.gpu, lease.instance, lease.started) for lease in put),
            )
            _append(connection, entries)

    def audit(self) -> list[AuditEntry]:
        """The whole audit log, oldest entry first."""
        rows = self._connection.execute(
            "SELECT time, event, gpu, instance, detail FROM audit ORDER BY id"
        )
        return [
            AuditEntry(time=time, event=event, gpu=gpu, instance=instance, detail=detail)
            for time, event, gpu, instance, detail in rows
        ]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # SQLite itself ends it after some errors
                connection.execute("ROLLBACK")
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _append(connection: sqlite3.Connection, entries: Iterable[AuditEntry]) -> None:
    connection.executemany(
        "INSERT INTO audit (time, event, gpu, instance, detail) VALUES (?, ?, ?, ?, ?)",
        ((entry.time, entry.event, entry.gpu, entry.instance, entry.detail) for entry in entries),
    )


def _lock(directory: Path) -> IO[bytes]:
    """Locks the directory. The lock ends with the process, even if that is killed."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        _close_to_others(directory)
        descriptor = os.open(directory / LOCK, os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o600)
        file = os.fdopen(descriptor, "ab")
    except OSError as error:
        raise SettingError(f"cannot write in {directory}: {error.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise SettingError(
            f"another license server uses {directory}: give each server its own directory"
        ) from None
    except OSError as error:  # for example on a network file system without locks
        file.close()
        raise SettingError(f"cannot lock {directory / LOCK}: {error.strerror}") from None
    return file


def _close_to_others(directory: Path) -> None:
    """Makes the store readable for the server's user only.

    Anyone who knows a holder's instance can release its seat. A directory that belongs to another
    user, such as the root of a volume, is not changed.
    """
    try:
        directory.chmod(0o700)
    except PermissionError:
        if directory.stat().st_mode & 0o007:
            logger.warning(
                "any user of this machine can list %s, which belongs to another user", directory
            )
    for path in directory.glob("license.*"):
        path.chmod(0o600)


def _open(path: Path) -> sqlite3.Connection:
    try:
        # SQLite creates its other files with the mode of this one.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise SettingError(f"cannot open {path}: {error.strerror}") from None
    try:
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    except sqlite3.Error as error:
        raise SettingError(f"cannot open {path}: {error}") from None
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            connection.executescript(_SCHEMA)
        elif version != VERSION:
            raise SettingError(
                f"{path} has schema version {version}, from another version of the license server; "
                f"this one needs {VERSION}"
            )
    except sqlite3.Error as error:
        connection.close()
        raise SettingError(f"cannot use {path}: {error}") from None
    except SettingError:
        connection.close()
        raise
    return connection
