"""A process and all it started: their memory, their use of the cores, stopping them."""

import contextlib
import time
from pathlib import Path

import psutil


class ProcessTree:
    """Children are looked up at each call: engines start workers when they like."""

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
        """Of one core, while nothing is asked of it."""
        before = self._cpu_seconds()
        time.sleep(seconds)
        return (self._cpu_seconds() - before) / seconds

    def reset_peak_memory(self) -> None:
        for process in self.processes():
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")

    def peak_memory_bytes(self) -> int:
        """The peak resident size of each process since `reset_peak_memory`, summed.

        Pages that processes share count in each of them.
        """
        return sum(_peak_bytes(process.pid) for process in self.processes())

    def _cpu_seconds(self) -> float:
        times = [process.cpu_times() for process in self.processes()]
        return sum(spent.user + spent.system for spent in times)


def _peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    return 0  # a process that has just ended
