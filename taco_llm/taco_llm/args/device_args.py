"""The engine's arguments for the device that runs the model, and its memory."""

import math
import re
from dataclasses import dataclass

from taco_llm.args.flags import WORKER, flag
from taco_llm.args.license_args import LicenseArgs
from taco_llm.args.scheduler_args import check_at_least
from taco_proto.errors import ArgumentError

_WORKER = (WORKER,)

# Arguments that only GPU workers read.
GPU_ONLY = (
    "gpu_memory_utilization",
    "conservative_dry_run",
    "enforce_eager",
    "max_seq_len_to_capture",
    "cpu_offload_gb",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceArgs(LicenseArgs):
    """Arguments of workers.

    Raises:
        ConfigurationError: a value is out of range, or two values contradict each other.
    """

    device: str = flag(
        "Device that runs the model: cpu, cuda, or cuda:1 for the second GPU. auto uses a GPU if "
        "the machine has one, and the CPU otherwise.",
        _WORKER,
        default="auto",
    )
    attention_backend: str | None = flag(
        "Attention implementation on a GPU: triton (TACO's own kernels), xformers (the xformers "
        "package) or torch (slow, for comparison). Default: the fastest one available.",
        _WORKER,
        default=None,
        choices=("triton", "xformers", "torch"),
    )
    gpu_memory_utilization: float = flag(
        "Maximum fraction of the GPU's memory that the worker uses. The KV cache gets the part "
        "that weights, activations and CUDA leave; a log line at start shows the amounts. Lower "
        "it if other processes use the same GPU.",
        _WORKER,
        default=0.9,
        parse=float,
        metavar="FRACTION",
    )
    conservative_dry_run: bool = flag(
        "Size the KV cache by all memory that the driver reports as used after the trial step, "
        "not only by torch's. Use it if steps run out of memory after a successful start.",
        _WORKER,
        default=False,
        is_advanced=True,
    )
    enforce_eager: bool = flag(
        "Run every step without CUDA graphs. This saves GPU memory, but small batches decode more "
        "slowly. Use it to debug, or if memory is short.",
        _WORKER,
        default=False,
    )
    max_seq_len_to_capture: int | None = flag(
        "Maximum tokens of a sequence that runs in CUDA graphs. Default: no limit.",
        _WORKER,
        default=None,
        parse=int,
        metavar="TOKENS",
        is_advanced=True,
    )
    cpu_offload_gb: float = flag(
        "GiB of weights that stay in host memory and are copied to the GPU in every step. Use it "
        "for a model larger than the GPU's memory; every step then waits for these copies.",
        _WORKER,
        default=0.0,
        parse=float,
        metavar="GIB",
    )
    num_threads: int | None = flag(
        "CPU threads that compute the model. Default: one per core. Lower it to leave cores to "
        "other processes.",
        _WORKER,
        default=None,
        parse=int,
        metavar="THREADS",
    )

    def __post_init__(self) -> None:
        LicenseArgs.__post_init__(self)
        for name in ("num_threads", "max_seq_len_to_capture"):
            check_at_least(name, getattr(self, name), 1)
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ArgumentError(
                "gpu_memory_utilization must be above 0 and at most 1, got "
                f"{self.gpu_memory_utilization}"
            )
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise ArgumentError(f"device must be auto, cpu, cuda or cuda:N, got {self.device!r}")
        if not 0 <= self.cpu_offload_gb < math.inf:
            raise ArgumentError(
                f"cpu_offload_gb must be a number from 0 on, got {self.cpu_offload_gb}"
            )
