"""Ranks on emulated hosts, forked from one process that has imported torch, which takes seconds.

As a program, this is that process: it runs on host 0, and its forks enter the network namespaces
of the other hosts.
"""

import json
import os
import runpy
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from taco_train.cluster.emulation import namespaces
from taco_train.cluster.emulation.emulator import EmulatedHosts, EmulatedProcess


def start_ranks(
    hosts: EmulatedHosts,
    ranks_per_host: int,
    script: str,
    folder: Path,
    *,
    stdout: IO[Any] | int | None = None,
) -> EmulatedProcess:
    """Runs a script once a rank, with the folder as its argument.

    Returns:
        The process whose exit code is 0 once all ranks have ended well, or that of the first rank
        that failed.
    """
    (folder / "script.py").write_text(script)
    names = hosts.fabric.names
    for number, name in enumerate(names[1:], 1):
        file = folder / f"{name}.pid"
        line = f"echo $$ > {file}.new; mv {file}.new {file}; exec sleep infinity"
        hosts.start(number, ["sh", "-c", line])
    ranks = [
        {"host": names[rank // ranks_per_host], "variables": dict(variables)}
        for rank, variables in enumerate(hosts.environments(ranks_per_host))
    ]
    (folder / "ranks.json").write_text(json.dumps(ranks))
    return hosts.start(0, [sys.executable, __file__, str(folder)], stdout=stdout)


def _main(folder: Path) -> None:
    import torch.distributed  # noqa: F401 (for all forks)

    pids = set()
    for rank in json.loads((folder / "ranks.json").read_text()):
        pid = os.fork()
        if not pid:
            _run(folder, rank["host"], rank["variables"])
            return
        pids.add(pid)
    while pids:
        pid, status = os.wait()
        pids.discard(pid)
        if code := os.waitstatus_to_exitcode(status):
            sys.exit(abs(code))


def _run(folder: Path, host: str, variables: Mapping[str, str]) -> None:
    if host != "host0":
        file = folder / f"{host}.pid"
        while not file.exists():
            time.sleep(0.01)
        descriptor = os.open(f"/proc/{file.read_text().strip()}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        namespaces.enter(descriptor)
        os.close(descriptor)
        namespaces.unshare(namespaces.CLONE_NEWUTS)
        namespaces.set_hostname(host)
    os.environ.update(variables)
    script = str(folder / "script.py")
    sys.argv = [script, str(folder)]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
