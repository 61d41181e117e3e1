"""Where the hosts of an elastic job come from."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from taco_train.lightcc.launcher.host_slots import HostsError, HostSlots, parse_hosts

_PERIOD_SECONDS = 1.0
_SCRIPT_SECONDS = 30.0


class FixedHosts:
    """Hosts that do not change."""

    can_change = False

    def __init__(self, hosts: Sequence[HostSlots]) -> None:
        self._hosts = list(hosts)

    def hosts(self) -> list[HostSlots]:
        """The hosts now."""
        return self._hosts

    def close(self) -> None:
        """Stops looking."""


class DiscoveryScript:
    """Hosts that a program prints, one `name` or `name:slots` a line; it runs every second.

    While the program fails, the hosts are those that it printed last.

    Raises:
        HostsError: there is no such program, or it cannot be executed.
    """

    can_change = True

    def __init__(self, path: Path, default_slots: int) -> None:
        if not os.access(path, os.X_OK) or path.is_dir():
            what = "cannot be executed: chmod +x it" if path.is_file() else "is no file"
            raise HostsError(f"--host-discovery-script {path} {what}")
        self._path = path
        self._default_slots = default_slots
        self._hosts: list[HostSlots] = []
        self._problem = ""
        self._is_closed = threading.Event()
        self._look()
        threading.Thread(target=self._serve, daemon=True).start()

    def hosts(self) -> list[HostSlots]:
        """The hosts at the last look."""
        return self._hosts

    def close(self) -> None:
        """Stops looking."""
        self._is_closed.set()

    def _serve(self) -> None:
        while not self._is_closed.wait(_PERIOD_SECONDS):
            self._look()

    def _look(self) -> None:
        try:
            self._hosts = self._ask()
            self._problem = ""
        except (OSError, ValueError) as error:
            problem = f"horovodrun: {self._path} does not tell the hosts: {error}"
            if problem != self._problem:
                print(problem, file=sys.stderr, flush=True)
            self._problem = problem

    def _ask(self) -> list[HostSlots]:
        try:
            result = subprocess.run(
                [str(self._path.resolve())],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_SCRIPT_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise HostsError(f"it has not ended within {_SCRIPT_SECONDS:g} s") from None
        if result.returncode:
            last = (result.stderr.strip().splitlines() or ["it printed no error"])[-1]
            raise HostsError(f"exit code {result.returncode}: {last}")
        lines = [line for line in result.stdout.splitlines() if line.strip()]
        return parse_hosts(",".join(lines), self._default_slots) if lines else []
