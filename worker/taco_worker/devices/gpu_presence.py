"""Detects a GPU without importing torch."""

from __future__ import annotations

from pathlib import Path

# Device files of the NVIDIA driver on Linux and on the Windows Subsystem for Linux.
_GPU_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))


def runs_on_cpu(device: str) -> bool:
    """Whether `--device` certainly selects the CPU."""
    if device == "cpu":
        return True
    return device.startswith("auto") and not any(path.exists() for path in _GPU_DEVICES)
