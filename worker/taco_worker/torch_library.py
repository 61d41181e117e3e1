"""Links PyTorch's library while other threads run Python, before torch is imported."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

from taco_worker.devices.gpu_presence import runs_on_cpu

# In the order and with the flags of `import torch`.
_LIBRARIES = (
    ("libtorch_global_deps.so", os.RTLD_GLOBAL),
    ("libtorch_cpu.so", os.RTLD_LOCAL),
)


def link_torch_early(device: str) -> threading.Thread | None:
    """Start a thread that links PyTorch's library for a CPU; None where that gains nothing.

    `import torch` links it with the interpreter's lock held, for 0.2 s on an AMD EPYC (Zen 4).
    A library that cannot be linked is left to the import, which reports it.

    Args:
        device: of the configuration.
    """
    if "torch" in sys.modules or not runs_on_cpu(device):
        return None
    spec = find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    directory = Path(spec.submodule_search_locations[0], "lib")
    thread = threading.Thread(target=_link, args=(directory,), name="torch library")
    thread.start()
    return thread


def _link(directory: Path) -> None:
    # Called as a foreign function it lets other threads run, unlike ctypes.CDLL.
    dlopen = ctypes.CDLL(None).dlopen
    dlopen.argtypes = (ctypes.c_char_p, ctypes.c_int)
    dlopen.restype = ctypes.c_void_p
    for name, scope in _LIBRARIES:
        dlopen(os.fsencode(directory / name), os.RTLD_NOW | scope)
