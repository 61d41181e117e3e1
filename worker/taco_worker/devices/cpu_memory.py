"""The memory that is available to a process on the host, container limits included."""

from __future__ import annotations

from pathlib import Path

import psutil


def available_cpu_memory(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that this process can still allocate: the machine's or, if less, its container's.

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
        # The page cache of files, such as the weights, counts as used but can be evicted.
        used = int((cgroup / "memory.current").read_text()) - int(statistics["inactive_file"])
        return min(available, max(0, int(limit) - used))
    except FileNotFoundError:
        return available
