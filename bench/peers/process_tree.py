"""A process and its children: memory, CPU use, suspend and kill."""

import contextlib
import time
from pathlib import Path

import psutil


class ProcessTree:
    """A process tree; children are looked up at each call, because engines start workers at any
    time.
    """

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)

    def processes(self) -> list[psutil.Process]:
        return [self._root, *self._root.children(recursive=True)]

    def suspend(self) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()

    def resume(self) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    def kill(self) -> None:
        for process in reversed(self.processes()):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def idle_cpu_share(self, seconds: float) -> float:
        """Returns the share of one core used while idle."""
        before = self._cpu_seconds()
        time.sleep(seconds)
        return (self._cpu_seconds() - before) / seconds

    def reset_peak_memory(self) -> None:
        for process in self.processes():
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")

    def peak_memory_bytes(self) -> int:
        """Returns the sum of the processes' peak resident sizes since `reset_peak_memory`.

        Shared pages count in each process.
        """
        return sum(_peak_bytes(process.pid) for process in self.processes())

    def _cpu_seconds(self) -> float:
        times = [process.cpu_times() for process in self.processes()]
        return sum(spent.user + spent.system for spent in times)


def _peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    return 0  # a process that has ended meanwhile
