"""Runs a command as every rank of emulated hosts, as torchrun would on real ones."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Sequence
from typing import IO

from taco_train.cluster.emulation.emulator import EmulatedHosts, EmulatedProcess

_GRACE_SECONDS = 10.0


def run_ranks(
    hosts: EmulatedHosts,
    command: Sequence[str],
    ranks_per_host: int,
    *,
    stdout: IO[bytes],
    stderr: IO[bytes],
) -> list[int]:
    """Runs the command in every rank until all have ended; output is written line by line.

    When a rank fails, the others are sent SIGTERM, and SIGKILL after 10 s.

    Args:
        hosts: those of `emulate`.
        command: the program and its arguments.
        ranks_per_host: number of ranks on each host.
        stdout, stderr: where lines go, each after `[rank] `.

    Returns:
        The exit code of every rank, by rank; negative after a signal.
    """
    outputs = _Outputs()
    ranks: list[EmulatedProcess] = []
    for rank, variables in enumerate(hosts.environments(ranks_per_host)):
        descriptors = [outputs.open(rank, file) for file in (stdout, stderr)]
        try:
            process = hosts.start(
                rank // ranks_per_host,
                command,
                environment=variables,
                stdout=descriptors[0],
                stderr=descriptors[1],
            )
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        ranks.append(process)
        outputs.watch(process)
    kill_at: float | None = None
    while any(process.poll() is None for process in ranks):
        outputs.copy(None if kill_at is None else max(0.0, kill_at - time.monotonic()))
        if kill_at is None and any(process.poll() for process in ranks):
            _signal(ranks, signal.SIGTERM)
            kill_at = time.monotonic() + _GRACE_SECONDS
        elif kill_at is not None and time.monotonic() >= kill_at:
            _signal(ranks, signal.SIGKILL)
    outputs.finish()
    return [process.wait() for process in ranks]


def _signal(ranks: Sequence[EmulatedProcess], number: signal.Signals) -> None:
    for process in ranks:
        process.send_signal(number)


class _Outputs:
    """The pipes of all ranks, whose lines are written with the rank's number."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._lines: dict[int, tuple[bytes, IO[bytes], bytearray]] = {}

    def open(self, rank: int, target: IO[bytes]) -> int:
        """A descriptor for a rank to write to."""
        ours, theirs = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(ours, False)
        self._lines[ours] = (f"[{rank}] ".encode(), target, bytearray())
        self._selector.register(ours, selectors.EVENT_READ)
        return theirs

    def watch(self, process: EmulatedProcess) -> None:
        """Lets `copy` return when the process ends."""
        self._selector.register(process, selectors.EVENT_READ, process)

    def copy(self, timeout: float | None) -> None:
        """Waits for output or for the end of a process, and copies whole lines."""
        for key, _ in self._selector.select(timeout):
            if isinstance(key.data, EmulatedProcess):
                self._selector.unregister(key.fileobj)
            else:
                self._copy_from(key.fd)

    def finish(self) -> None:
        """Copies the rest: what a process that is still in the background writes is cut off."""
        for descriptor in list(self._lines):
            while descriptor in self._lines and self._copy_from(descriptor):
                pass
        for descriptor in list(self._lines):
            self._close(descriptor)
        self._selector.close()

    def _copy_from(self, descriptor: int) -> bool:
        try:
            data = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            self._close(descriptor)
            return False
        prefix, target, rest = self._lines[descriptor]
        rest += data
        *lines, last = rest.split(b"\n")
        rest[:] = last
        _write(target, prefix, lines)
        return True

    def _close(self, descriptor: int) -> None:
        prefix, target, rest = self._lines.pop(descriptor)
        _write(target, prefix, [rest] if rest else [])
        self._selector.unregister(descriptor)
        os.close(descriptor)


def _write(target: IO[bytes], prefix: bytes, lines: Sequence[bytes | bytearray]) -> None:
    target.write(b"".join(prefix + line + b"\n" for line in lines))
    target.flush()
