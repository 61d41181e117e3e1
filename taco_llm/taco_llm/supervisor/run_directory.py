"""The directory of one `taco_llm serve`: its sockets, removed when the command ends.

A command that is killed with SIGKILL cannot remove it; the next one does.
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
    """A directory of mode 0700 for as long as the context lasts.

    It holds a locked file, so that directories of running commands are told from stale ones, which
    are removed first.
    """
    remove_stale_directories()
    path, lock = _make()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def remove_stale_directories() -> None:
    """Removes this user's directories whose command has ended."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            if path.lstat().st_uid != os.getuid() or path.is_symlink():
                continue
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # another user's, or just being made
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            pass  # its command runs
        finally:
            os.close(lock)


def _make() -> tuple[Path, int]:
    """A new directory and the descriptor of its lock, which closes when the process ends."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (path / _LOCK).exists():
            return path, lock
        os.close(lock)  # another command took it for a stale one before it was locked
