"""Context of every part: the device, the sizes to measure with, and the record."""

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
    """A GPU; or the CPU, which tests the scripts with the smallest possible shapes."""

    device: torch.device

    @property
    def is_real(self) -> bool:
        """Whether figures are meaningful."""
        return self.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """Number type: Triton's interpreter computes wrong products of bfloat16."""
        return torch.bfloat16 if self.is_real else torch.float16

    @property
    def l2_bytes(self) -> int:
        return torch.cuda.get_device_properties(self.device).L2_cache_size if self.is_real else 0

    @property
    def num_sms(self) -> int:
        """Number of multiprocessors; four without a GPU."""
        if not self.is_real:
            return 4
        return torch.cuda.get_device_properties(self.device).multi_processor_count

    def free_bytes(self) -> int:
        """Free bytes of the device's memory."""
        if not self.is_real:
            return _NOT_MEASURED_BYTES
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self.device)[0]

    def num_sets(self, num_bytes: int) -> int:
        """Returns how many sets of `num_bytes` to alternate between, so that none stays in the
        L2 cache.
        """
        if not self.is_real:
            return 2
        return max(1, min(64, -(-4 * self.l2_bytes // num_bytes)))


@dataclass(frozen=True, slots=True)
class Context(Device):
    """One part of a run; `report` records its figures."""

    report: Report


@contextmanager
def open_context(part: str, device: str, folder: Path, seconds: float) -> Iterator[Context]:
    """Opens a part's context. Exits with `NO_DEVICE_CODE` if the device does not exist."""
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit(NO_DEVICE_CODE)
    torch.manual_seed(0)
    gpu = torch.cuda.get_device_name() if device == "cuda" else "none: CPU, interpreted"
    report = Report(part, folder, seconds, gpu)
    yield Context(torch.device(device), report)
    report.close()
