"""Memory that was freed below memory in use goes back to the system."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
from pathlib import Path
from taco_common.free_memory import return_free_memory

def resident_kib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

blocks = [bytearray(4000) for _ in range(20_000)]
last = bytearray(4000)  # above the others: the heap cannot shrink
del blocks
before = resident_kib()
return_free_memory()
print(before - resident_kib())
"""


def test_freed_blocks_go_back() -> None:
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 40_000
