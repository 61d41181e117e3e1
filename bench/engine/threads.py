"""CPU time and wake-ups of this process's threads, as Linux counts them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

_TASKS = Path("/proc/self/task")


def thread_figures(shown: Mapping[str, str]) -> tuple[Counter[str], Counter[str]]:
    """CPU time in nanonanoseconds, and how often the thread slept, both by the thread's name.

    Args:
        shown: other names for some threads.
    """
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    nanoseconds: Counter[str] = Counter()
    wake_ups: Counter[str] = Counter()
    for task in _TASKS.iterdir():
        name = names.get(int(task.name)) or (task / "comm").read_text().strip()
        name = shown.get(name, name)
        nanoseconds[name] += int((task / "schedstat").read_text().split()[0])
        status = (task / "status").read_text()
        wake_ups[name] += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return nanoseconds, wake_ups
