"""Runs one rank's command, on the rank's host, and ends it when the launcher is gone.

The launcher starts this module, by ssh on other hosts, and keeps its standard input open: the first
line says what to run, and its end means that the launcher has ended, however that happened. The
command, and every process that it started, end then. The exit code is that of the command, 128 + n
after signal n, as in shells.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress

# The launcher forwards what follows this line: shells of other hosts may greet before it.
STARTED = "taco_train: the rank starts"
CANNOT_START = 127
GRACE_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1


def main() -> int:
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return 1  # the launcher ended at once
    order = json.loads(line)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    print(STARTED, flush=True)
    try:
        child = subprocess.Popen(
            order["command"],
            cwd=order["folder"],
            env={**os.environ, **order["environment"]},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    except OSError as error:
        print(f"cannot start {order['command'][0]}: {error}", file=sys.stderr)
        return CANNOT_START
    child_end = os.pidfd_open(child.pid)
    try:
        select.select([sys.stdin.fileno(), child_end], [], [])
        if child.poll() is None:
            _signal(child, signal.SIGTERM)
            _signal(child, signal.SIGCONT)  # a stopped process only then gets it
            select.select([child_end], [], [], GRACE_SECONDS)
    finally:
        _signal(child, signal.SIGKILL)  # the command, or what it has left
        code = child.wait()
    return code if code >= 0 else 128 - code


def _signal(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, number)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
