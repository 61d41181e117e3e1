"""Processes of ranks, as the launcher sees them: started here or by ssh, their lines prefixed."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from taco_train.lightcc.launcher.guard import STARTED
from taco_train.lightcc.launcher.host_slots import is_local

_WRITE = threading.Lock()
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

    Raises:
        OSError: ssh is not installed.
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
    ) -> None:
        self.host, self.label = host, label
        self._on_started, self._on_end = on_started, on_end
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
            threading.Thread(target=self._copy, args=(name, folder), daemon=True)
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

    def _copy(self, name: str, folder: Path | None) -> None:
        source: IO[bytes] | None = getattr(self._process, name)
        target: IO[bytes] = getattr(sys, name).buffer
        assert source
        has_started = name == "stderr"
        copy = (folder / name).open("wb") if folder else None
        try:
            for line in source:
                if not has_started:
                    has_started = line.rstrip() == STARTED.encode()
                    if has_started:
                        self._is_started = True
                        self._on_started()
                    continue
                if copy:
                    copy.write(line)
                    copy.flush()
                ended = line if line.endswith(b"\n") else line + b"\n"
                with _WRITE:
                    target.write(f"[{self.label}]<{name}>:".encode() + ended)
                    target.flush()
        finally:
            if copy:
                copy.close()


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
