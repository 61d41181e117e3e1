"""The GPU and its measured limits, which no kernel can exceed."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import asdict, dataclass
from typing import Any

import torch

from bench.gpu.harness import report
from bench.gpu.harness.context import Context
from bench.gpu.harness.timing import time_calls
from taco_llm.bench.environment import versions

_PACKAGES = ("torch", "triton", "transformers", "xformers", "flashinfer-python", "protobuf")
_QUERIES = (
    *("driver_version", "memory.total", "clocks.sm", "clocks.mem", "clocks.max.sm"),
    *("clocks.max.mem", "temperature.gpu", "power.draw", "power.limit", "pstate"),
)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Measured rates: GB/s of 10^9 bytes, TFLOP/s with a multiply-add counted as two.

    Attributes:
        copy_gb_per_s: copies within device memory, bytes read plus bytes written.
        read_gb_per_s: of a sum.
        bf16_tflops: of a large product of random numbers.
        to_host_gb_per_s, from_host_gb_per_s: copies to and from pinned memory.
    """

    copy_gb_per_s: float
    read_gb_per_s: float
    bf16_tflops: float
    to_host_gb_per_s: float
    from_host_gb_per_s: float


def measure(context: Context) -> None:
    found = describe(context)
    context.report.add("environment", found, f"{context.report.gpu}, torch {torch.__version__}")
    ceilings = measure_ceilings(context)
    context.report.add(
        "ceilings",
        asdict(ceilings),
        f"copy {ceilings.copy_gb_per_s:.0f} GB/s, read {ceilings.read_gb_per_s:.0f} GB/s, "
        f"bf16 {ceilings.bf16_tflops:.0f} TFLOP/s",
    )


def load_ceilings(context: Context) -> Ceilings:
    """Reads the limits from this GPU's record in the same folder; measures them if there is
    none.
    """
    record = report.read("machine", context.report.folder)
    if record.get("gpu") == context.report.gpu and "ceilings" in record["figures"]:
        return Ceilings(**record["figures"]["ceilings"])
    return measure_ceilings(context)


def describe(context: Context) -> dict[str, Any]:
    found: dict[str, Any] = {
        "cuda": torch.version.cuda,
        "versions": versions(_PACKAGES),
        "has_nvcc": shutil.which("nvcc") is not None,
    }
    if context.is_real:
        properties = torch.cuda.get_device_properties(context.device)
        found |= {
            "cudnn": torch.backends.cudnn.version(),
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "l2_mib": properties.L2_cache_size / 2**20,
            "memory_gib": round(properties.total_memory / 2**30, 1),
            "free_gib": round(context.free_bytes() / 2**30, 1),
            "nvidia_smi": _nvidia_smi(),
        }
    return found


def measure_ceilings(context: Context) -> Ceilings:
    device = context.device
    num_bytes = 4 << 30 if context.is_real else 1 << 16
    size = 8192 if context.is_real else 64

    def rate(amount: int, us: float) -> float:
        """Returns a rate in 10^9 per second."""
        return float(f"{amount / us / 1e3:.4g}")

    source = torch.randn(num_bytes // 4, device=device)
    target = torch.empty_like(source)
    copy = time_calls([lambda: target.copy_(source)], device)
    read = time_calls([source.sum], device)
    host = torch.empty(num_bytes // 16, pin_memory=context.is_real)
    part = source[: host.numel()]
    down = time_calls([lambda: host.copy_(part, non_blocking=True)], device)
    up = time_calls([lambda: part.copy_(host, non_blocking=True)], device)
    a = torch.randn(size, size, device=device, dtype=context.dtype)
    b = torch.randn(size, size, device=device, dtype=context.dtype)
    product = time_calls([lambda: a @ b], device)
    return Ceilings(
        copy_gb_per_s=rate(2 * num_bytes, copy.us),
        read_gb_per_s=rate(num_bytes, read.us),
        bf16_tflops=rate(2 * size**3 // 1000, product.us),
        to_host_gb_per_s=rate(host.nbytes, down.us),
        from_host_gb_per_s=rate(host.nbytes, up.us),
    )


def _nvidia_smi() -> dict[str, str] | str:
    command = ["nvidia-smi", f"--query-gpu={','.join(_QUERIES)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    values = done.stdout.splitlines()[0].split(",")
    return dict(zip(_QUERIES, (value.strip() for value in values), strict=True))
