"""What every part gets: the device, the sizes to measure with, and its record."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.gpu.harness.processes import NO_DEVICE_CODE
from bench.gpu.harness.report import Report

_NOT_MEASURED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU; or the CPU, which tries the scripts themselves with shapes as small as can be."""

    device: torch.device

    @property
    def is_real(self) -> bool:
        """Whether figures mean something."""
        return self.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """The interpreter's product of bfloat16 is wrong."""
        return torch.bfloat16 if self.is_real else torch.float16

    @property
    def l2_bytes(self) -> int:
        return torch.cuda.get_device_properties(self.device).L2_cache_size if self.is_real else 0

    @property
    def num_sms(self) -> int:
        """Multiprocessors; four where there are none."""
        if not self.is_real:
            return 4
        return torch.cuda.get_device_properties(self.device).multi_processor_count

    def free_bytes(self) -> int:
        """Of the device's memory."""
        if not self.is_real:
            return _NOT_MEASURED_BYTES
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self.device)[0]

    def num_sets(self, num_bytes: int) -> int:
        """How many sets of `num_bytes` to take turns with, so that none is found in the L2."""
        if not self.is_real:
            return 2
        return max(1, min(64, -(-4 * self.l2_bytes // num_bytes)))


@dataclass(frozen=True, slots=True)
class Context(Device):
    """One part of a run; `report` takes its figures."""

    report: Report


@contextmanager
def open_context(part: str, device: str, folder: Path, seconds: float) -> Iterator[Context]:
    """Ends the process with `NO_DEVICE_CODE` where there is no such device."""
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit(NO_DEVICE_CODE)
    torch.manual_seed(0)
    gpu = torch.cuda.get_device_name() if device == "cuda" else "none: CPU, interpreted"
    report = Report(part, folder, seconds, gpu)
    yield Context(torch.device(device), report)
    report.close()
