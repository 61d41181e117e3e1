"""How much memory a process on the host may still take."""

from __future__ import annotations

from pathlib import Path

import psutil


def available_cpu_memory(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes this process may still take: the machine's, or its container's where that is less.

    Args:
        cgroup: the container's control group, version 2.
    """
    available = int(psutil.virtual_memory().available)
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        if limit == "max":
            return available
        statistics = dict(
            line.split() for line in (cgroup / "memory.stat").read_text().splitlines()
        )
        # Files that were read, the weights among them, count as used but can be evicted.
        used = int((cgroup / "memory.current").read_text()) - int(statistics["inactive_file"])
        return min(available, max(0, int(limit) - used))
    except FileNotFoundError:
        return available
