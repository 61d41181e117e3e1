"""Records a real session of the demo model in three terminals, for the README's terminal picture.

    python -m bench.pictures.record_demo      # writes bench/pictures/demo.json
    python -m bench.pictures.terminal_picture # draws docs/images/demo.svg from it

One terminal serves the demo model with two workers, one runs `taco_llm chat`, and one kills a
worker with `kill -9`. Each is a shell on a pseudo-terminal. The script types, and records every
piece of output with the second at which it came. No time is changed afterwards.
"""

import argparse
import codecs
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import psutil

from bench import record

RECORDING = Path(__file__).parent / "demo.json"
COLUMNS = 124
_KEY_S = 0.045  # seconds between two keys
_READ_S = 1.2  # seconds that a reader gets before the next command is typed
_LIMIT_S = 60.0


class Recording:
    """Output of several terminals on one clock."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self.events: list[tuple[float, str, str]] = []

    def add(self, terminal: str, output: str) -> None:
        self.events.append((round(time.monotonic() - self._start, 3), terminal, output))

    def shown(self, terminal: str) -> str:
        return "".join(output for _, name, output in self.events if name == terminal)


class Terminal:
    """A shell on a pseudo-terminal whose output is recorded.

    The shell has no start-up files, and `taco_llm` of this interpreter's environment on its path.
    """

    def __init__(self, name: str, recording: Recording) -> None:
        self.name = name
        self._recording = recording
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            stdin=slave,
            stdout=slave,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PATH": path, "PS1": "$ ", "TERM": "dumb", "HISTFILE": ""},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def fileno(self) -> int:
        return self._master

    def type_line(self, text: str) -> None:
        for key in f"{text}\n":
            os.write(self._master, key.encode())
            _read([self], _KEY_S)

    def read(self) -> None:
        """Records what can be read now."""
        output = self._decoder.decode(os.read(self._master, 65536))
        self._recording.add(self.name, output)

    def close(self) -> None:
        self.shell.send_signal(signal.SIGHUP)
        self.shell.wait()
        os.close(self._master)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    recording = record_session()
    entry: dict[str, Any] = record.describe()
    record.write(RECORDING, entry | {"columns": COLUMNS, "events": recording.events})
    print(f"written: {RECORDING}")


def record_session() -> Recording:
    recording = Recording()
    server, client, other = terminals = [
        Terminal(name, recording) for name in ("server", "client", "other")
    ]

    def wait_for(terminal: Terminal, text: str, times: int = 1) -> None:
        limit = time.monotonic() + _LIMIT_S
        while recording.shown(terminal.name).count(text) < times:
            if time.monotonic() > limit:
                raise TimeoutError(f"{terminal.name} shows no {text!r}: {recording.events[-5:]}")
            _read(terminals, 0.1)

    try:
        wait_for(other, "$ ")
        server.type_line("taco_llm serve demo --host 127.0.0.1 --data-parallel-size 2")
        wait_for(server, "ready in")
        _read(terminals, _READ_S)
        client.type_line("taco_llm chat")
        wait_for(client, "> ")
        client.type_line("What does os.path.join do?")
        wait_for(client, "> ", times=2)
        _read(terminals, _READ_S)
        other.type_line(f"kill -9 {_worker_of(server.shell.pid)}   # one of the two workers")
        client.type_line("How do I use json.dumps?")
        wait_for(client, "> ", times=3)
        _read(terminals, 2 * _READ_S)
    finally:
        os.write(server.fileno(), b"\x03")
        for _ in range(50):
            _read(terminals, 0.1, into=Recording())
            if not psutil.Process(server.shell.pid).children():
                break
        for terminal in terminals:
            terminal.close()
    return recording


def _read(terminals: list[Terminal], seconds: float, into: Recording | None = None) -> None:
    """Records what the terminals show in these seconds, or drops it into another recording."""
    limit = time.monotonic() + seconds
    while (rest := limit - time.monotonic()) > 0:
        for terminal in select.select(terminals, [], [], rest)[0]:
            if into is not None:
                terminal._recording = into
            terminal.read()


def _worker_of(shell: int) -> int:
    """The process of the first worker that the shell's server has started."""
    return next(
        process.pid
        for process in psutil.Process(shell).children(recursive=True)
        if "worker" in process.cmdline()
    )


if __name__ == "__main__":
    main()
