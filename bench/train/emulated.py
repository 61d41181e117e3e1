"""Runs a benchmark's ranks on emulated hosts, whose links they change while they run.

The starting process owns the emulation. Rank 0 asks it, over a Unix socket, for another rate, and
hands its figures over: one JSON object a line in each direction.
"""

import json
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from taco_train.cluster.emulation.emulator import EmulatedHosts, emulate
from taco_train.cluster.emulation.fabric import Fabric
from taco_train.cluster.emulation.run import run_ranks

_VARIABLE = "TACO_TRAIN_BENCH_SOCKET"


def is_rank() -> bool:
    """Whether this process is a rank that `run` started."""
    return _VARIABLE in os.environ and "RANK" in os.environ


def run(module: str, arguments: Sequence[str], fabric: Fabric, ranks_per_host: int) -> Any:
    """Runs `python -m module arguments` once a rank; returns what rank 0 reported.

    Raises:
        SystemExit: a rank failed, or rank 0 reported nothing.
    """
    found: list[Any] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.socket(socket.AF_UNIX) as server,
        emulate(fabric) as hosts,
    ):
        path = str(Path(folder) / "driver")
        server.bind(path)
        server.listen()
        threading.Thread(target=_serve, args=(server, hosts, found), daemon=True).start()
        os.environ[_VARIABLE] = path
        # broadcast_buffers=False works in every torch, and newer ones warn of it.
        os.environ.setdefault("PYTHONWARNINGS", "ignore::FutureWarning")
        try:
            codes = run_ranks(
                hosts,
                [sys.executable, "-m", module, *arguments],
                ranks_per_host,
                stdout=sys.stdout.buffer,
                stderr=sys.stderr.buffer,
            )
        finally:
            del os.environ[_VARIABLE]
    if any(codes) or not found:
        sys.exit(f"{module}: ranks ended with {codes}")
    return found[0]


class Driver:
    """Rank 0's connection to the process that started it. On other ranks, all calls do nothing."""

    def __init__(self, rank: int) -> None:
        self._file: Any = None
        if rank == 0:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(os.environ[_VARIABLE])
            self._file = connection.makefile("rw")

    def set_rate(self, bits_per_second: float) -> None:
        """Changes the rate of all links, which must have one."""
        self._ask({"rate": bits_per_second})

    def show(self, text: str) -> None:
        """Prints lines without a rank's number."""
        self._ask({"show": text})

    def report(self, figures: Any) -> None:
        """Hands over the result of the run."""
        self._ask({"figures": figures})

    def _ask(self, message: dict[str, Any]) -> None:
        if self._file is None:
            return
        self._file.write(json.dumps(message) + "\n")
        self._file.flush()
        if not self._file.readline():
            raise ConnectionError("the process that runs the benchmark has ended")


def _serve(server: socket.socket, hosts: EmulatedHosts, found: list[Any]) -> None:
    connection, _ = server.accept()
    with connection, connection.makefile("rw") as file:
        for line in file:
            message = json.loads(line)
            if "rate" in message:
                hosts.set_rate(message["rate"])
            elif "show" in message:
                print(message["show"], flush=True)
            else:
                found.append(message["figures"])
            file.write("{}\n")
            file.flush()
