"""Whether this machine has a GPU, as far as that can be said without torch."""

from __future__ import annotations

from pathlib import Path

# The driver of NVIDIA GPUs, and that of Windows' subsystem for Linux.
_GPU_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))


def runs_on_cpu(device: str) -> bool:
    """Whether `--device` is sure to be the CPU."""
    if device == "cpu":
        return True
    return device.startswith("auto") and not any(path.exists() for path in _GPU_DEVICES)
