"""The engine's arguments for the lower KV cache tiers: host memory and disk."""

import logging
import math
from dataclasses import dataclass

from taco_llm.args.flags import WORKER, flag
from taco_llm.args.speculation_args import SpeculationArgs
from taco_proto.errors import ArgumentError

logger = logging.getLogger("taco.llm")

_WORKER = (WORKER,)
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTierArgs(SpeculationArgs):
    """Arguments of workers; those of the scheduler are in `SchedulerArgs`.

    Raises:
        ConfigurationError: a value is out of range, or two values contradict each other.
    """

    enable_prefix_cache_offload: bool = flag(
        "Offload cached prefixes to host memory when the device evicts them, and copy them back "
        "for prompts with the same prefix. Use it if prefixes are reused but do not fit on the "
        "device.",
        _WORKER,
        default=False,
    )
    cpu_prefill_memory_utilization: float = flag(
        "Fraction of the machine's memory for offloaded prefixes, divided equally among the "
        "workers that taco_llm serve starts on it. The default takes less if less memory is free; "
        "a fraction that you set must be free.",
        _WORKER,
        default=0.3,
        parse=float,
        metavar="FRACTION",
    )
    swap_space: float | None = flag(
        "GiB of host memory for the offloaded prefixes of each worker. It replaces "
        "--cpu-prefill-memory-utilization.",
        _WORKER,
        default=None,
        parse=float,
        metavar="GIB",
    )
    apc_offload_lazy: bool = flag(
        "Start a step when the first layer of its offloaded prefixes is loaded, and load the other "
        "layers during the step. If off, the step waits for all layers.",
        _WORKER,
        default=True,
        is_advanced=True,
        old_negations=("apc_offload_not_lazy",),
    )
    kv_disk_path: str | None = flag(
        "Directory that keeps cached prefixes over restarts. It needs "
        "--enable-prefix-cache-offload. Its files contain users' prompts and answers: protect "
        "them.",
        _WORKER,
        default=None,
        metavar="DIR",
    )
    kv_disk_space: float = flag(
        "Maximum GiB of the files in --kv-disk-path.",
        _WORKER,
        default=16.0,
        parse=float,
        metavar="GIB",
    )

    def __post_init__(self) -> None:
        SpeculationArgs.__post_init__(self)
        if not 0 < self.cpu_prefill_memory_utilization <= 1:
            raise ArgumentError(
                "cpu_prefill_memory_utilization must be above 0 and at most 1, got "
                f"{self.cpu_prefill_memory_utilization}"
            )
        if self.swap_space is not None and not 0 <= self.swap_space < math.inf:
            raise ArgumentError(f"swap_space must be a number from 0 on, got {self.swap_space}")
        if not 0 < self.kv_disk_space < math.inf:
            raise ArgumentError(f"kv_disk_space must be above 0, got {self.kv_disk_space}")
        if self.enable_prefix_cache_offload:
            if not self.enable_prefix_caching:
                raise ArgumentError(
                    "enable_prefix_cache_offload needs enable_prefix_caching: only cached prefixes "
                    "are offloaded"
                )
            if self.swap_space == 0:
                raise ArgumentError(
                    "enable_prefix_cache_offload needs host memory: swap_space must be above 0, "
                    "got 0"
                )
        elif self.kv_disk_path is not None:
            raise ArgumentError(
                "kv_disk_path needs enable_prefix_cache_offload: blocks reach the disk through "
                "host memory"
            )

    def warn_of_unused_tier_arguments(self) -> None:
        """Logs a warning for each given argument that needs the host tier, if that is off."""
        if self.enable_prefix_cache_offload:
            return
        for name, is_given in {
            "swap_space": self.swap_space,
            "preemption_mode swap": self.preemption_mode == "swap",
        }.items():
            if is_given:
                logger.warning("%s has no effect without enable_prefix_cache_offload", name)

    def host_kv_bytes(self, num_workers: int = 1) -> int:
        """Bytes of the host tier of one worker, if `num_workers` run on this machine."""
        if not self.enable_prefix_cache_offload:
            return 0
        if self.swap_space is not None:
            return int(self.swap_space * _GIB)

        import psutil  # not installed in a gateway's image

        total = psutil.virtual_memory().total
        return int(total * self.cpu_prefill_memory_utilization / num_workers)

    def kv_disk_bytes(self) -> int:
        return int(self.kv_disk_space * _GIB)
