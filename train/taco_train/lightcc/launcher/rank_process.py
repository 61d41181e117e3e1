"""Processes of ranks, as the launcher sees them: started here or by ssh, their lines prefixed."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from taco_train.lightcc.launcher.guard import STARTED
from taco_train.lightcc.launcher.host_slots import is_local

_WRITE = threading.Lock()  # to standard output and error, which all ranks share
# Of this login or host: they mean something else on another one.
_NOT_SENT = ("SSH_", "XDG_", "DBUS_", "BASH_FUNC_")
_LOGIN = ("DISPLAY", "HOME", "HOSTNAME", "LOGNAME", "SHELL", "TERM", "TMPDIR", "USER")
_NOT_SENT_NAMES = frozenset((*_LOGIN, "OLDPWD", "PWD", "SHLVL", "_"))


@dataclass(frozen=True)
class Connection:
    """How ssh reaches other hosts; None: as its configuration says."""

    port: int | None = None
    identity_file: str | None = None


class RankProcess:
    """A rank's command, which runs until it ends or `stop` is called.

    Args:
        command: the program and its arguments.
        host: where it runs.
        variables: of this rank, beside this process's environment.
        label: its number, as its lines begin: `[label]<stdout>:`.
        connection: of ssh.
        folder: for copies of its output; None: none.
        on_started: called in a thread when its host runs it.
        on_end: called in a thread with its exit code, after its last line is written.
        on_closed: called in a thread when no process reads the launcher's output any more.

    Raises:
        OSError: ssh is not installed, or the folder cannot be written.
    """

    def __init__(
        self,
        command: Sequence[str],
        host: str,
        variables: Mapping[str, str],
        label: str,
        *,
        connection: Connection,
        folder: Path | None,
        on_started: Callable[[], None],
        on_end: Callable[[int], None],
        on_closed: Callable[[], None],
    ) -> None:
        self.host, self.label = host, label
        self._on_started, self._on_end, self._on_closed = on_started, on_end, on_closed
        copies = _open_copies(folder) if folder else {}
        local = is_local(host)
        self._is_started = local  # a guard here ends by itself, with what it has started
        try:
            self._process = subprocess.Popen(
                guard_command() if local else ssh_command(host, connection),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # an interrupt of the terminal is for the launcher alone
            )
        except FileNotFoundError as error:
            raise OSError(
                f"rank {label} on host {host} could not be started: {error.filename} is not "
                "installed"
            ) from None
        sent = {} if local else sent_environment(os.environ)
        order = {
            "command": list(command),
            "folder": os.getcwd(),
            "environment": {**sent, **variables},
        }
        assert self._process.stdin
        with suppress(BrokenPipeError):  # its exit code says why
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        self._readers = [
            threading.Thread(target=self._forward, args=(name, copies.get(name)), daemon=True)
            for name in ("stdout", "stderr")
        ]
        for thread in self._readers:
            thread.start()
        threading.Thread(target=self._watch, daemon=True).start()

    def stop(self) -> None:
        """Ends the command and its processes: SIGTERM, and SIGKILL after a while.

        A host that has not started the command yet may not answer: its connection ends at once.
        """
        assert self._process.stdin
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        if not self._is_started:
            self._process.kill()

    def kill(self) -> None:
        """Ends the connection to a rank that does not end."""
        self._process.kill()

    def _watch(self) -> None:
        code = self._process.wait()
        for thread in self._readers:
            thread.join(5.0)  # what a stray process holds open is not waited for
        self._on_end(code if code >= 0 else 128 - code)

    def _forward(self, name: str, copy: IO[bytes] | None) -> None:
        """Writes the lines of stdout or stderr until the rank closes it.

        What cannot be written is dropped: a rank would wait for ever to write to a full pipe.
        """
        source: IO[bytes] | None = getattr(self._process, name)
        target: IO[bytes] | None = getattr(sys, name).buffer
        assert source
        has_started = name == "stderr"
        prefix = f"[{self.label}]<{name}>:".encode()
        copy_name = f"the copy of rank {self.label}'s {name}"
        for line in source:
            if not has_started:
                has_started = line.rstrip() == STARTED.encode()
                if has_started:
                    self._is_started = True
                    self._on_started()
                continue
            if copy and not self._has_written(copy, line, copy_name, nullcontext()):
                copy = None
            ended = line if line.endswith(b"\n") else line + b"\n"
            if target and not self._has_written(target, prefix + ended, name, _WRITE):
                target = None
        if copy:
            copy.close()

    def _has_written(
        self, file: IO[bytes], line: bytes, what: str, lock: AbstractContextManager[object]
    ) -> bool:
        try:
            with lock:
                file.write(line)
                file.flush()
        except OSError as error:
            _discard(file)
            if isinstance(error, BrokenPipeError):
                self._on_closed()
            else:
                print(f"horovodrun: {what} ends: {error.strerror}", file=sys.stderr, flush=True)
            return False
        return True


def _open_copies(folder: Path) -> dict[str, IO[bytes]]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return {name: (folder / name).open("wb") for name in ("stdout", "stderr")}
    except OSError as error:
        raise OSError(f"output cannot be copied to {folder}: {error.strerror}") from None


def _discard(file: IO[bytes]) -> None:
    """Lets what is buffered, and what follows, go nowhere; Python flushes files when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, file.fileno())
    os.close(nowhere)


def guard_command() -> list[str]:
    return [sys.executable, "-m", "taco_train.lightcc.launcher.guard"]


def ssh_command(host: str, connection: Connection) -> list[str]:
    """`ssh` to a host where this Python and this package are at the same path."""
    options = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no"]
    # ssh ends with 255 where its link is cut.
    options += ["-o", "ServerAliveInterval=2", "-o", "ServerAliveCountMax=4"]
    if connection.port is not None:
        options += ["-p", str(connection.port)]
    if connection.identity_file is not None:
        options += ["-i", connection.identity_file]
    command = guard_command()
    if "PYTHONPATH" in os.environ:
        command = ["env", f"PYTHONPATH={os.environ['PYTHONPATH']}", *command]
    return ["ssh", *options, host, shlex.join(command)]


def sent_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that ranks on other hosts get too."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _NOT_SENT_NAMES and not name.startswith(_NOT_SENT)
    }
