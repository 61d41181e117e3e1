"""Linux namespaces by ctypes: what Python has only from 3.12 on (os.unshare, os.setns)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# linux/sched.h
CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
# linux/mount.h, linux/prctl.h
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
_PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Moves this process (its children, for CLONE_NEWPID) to new namespaces.

    Raises:
        OSError: the kernel forbids it.
    """
    _check(_libc.unshare(flags), "unshare")


def enter(namespace: int) -> None:
    """Moves this thread to the network namespace of a file descriptor."""
    _check(_libc.setns(namespace, CLONE_NEWNET), "setns")


@contextmanager
def inside(namespace: int) -> Iterator[None]:
    """Is in a network namespace for a while."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(namespace)
        yield
    finally:
        enter(before)
        os.close(before)


def mount(source: str, target: str, kind: str | None, flags: int) -> None:
    encoded = None if kind is None else kind.encode()
    _check(_libc.mount(source.encode(), target.encode(), encoded, flags, None), "mount")


def set_hostname(name: str) -> None:
    _check(_libc.sethostname(name.encode(), len(name)), "sethostname")


def die_with_parent(signal: int) -> None:
    """Sends this process a signal when the thread that forked it ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal, 0, 0, 0), "prctl")


def unshare_all() -> None:
    """New mount, process and network namespaces; without root, as root of a user namespace.

    Raises:
        OSError: the kernel forbids it.
    """
    flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET
    try:
        unshare(flags)
    except PermissionError:
        uid, gid = os.geteuid(), os.getegid()
        unshare(flags | CLONE_NEWUSER)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


def _check(status: int, function: str) -> None:
    if status:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")
