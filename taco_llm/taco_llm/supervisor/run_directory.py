"""The private directory of one `taco_llm serve`, with its sockets. It is removed at the end.

A command that is killed with SIGKILL leaves its directory behind; the next command removes it.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "taco-serve-"
_LOCK = "lock"


@contextmanager
def run_directory() -> Generator[Path, None, None]:
    """Creates a directory of mode 0700 and removes it at the end of the context.

    The directory contains a locked file, which distinguishes it from stale directories. Those are
    removed first.
    """
    remove_stale_directories()
    path, lock = _make()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def remove_stale_directories() -> None:
    """Removes directories of this user whose command has ended."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            if path.lstat().st_uid != os.getuid() or path.is_symlink():
                continue
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # another user's directory, or one that is being created
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            pass  # its command is running
        finally:
            os.close(lock)


def _make() -> tuple[Path, int]:
    """A new directory and the descriptor of its lock. The lock ends with the process."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (path / _LOCK).exists():
            return path, lock
        os.close(lock)  # another command removed it as stale before it was locked
