"""The engine's arguments for KV beside the device: in host memory, and on disk."""

import logging
import math
from dataclasses import dataclass

from taco_llm.args.flags import WORKER, flag
from taco_llm.args.speculation_args import SpeculationArgs
from taco_proto.errors import ConfigurationError

logger = logging.getLogger("taco.llm")

_WORKER = (WORKER,)
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTierArgs(SpeculationArgs):
    """Arguments of workers; those of the scheduler are in `SchedulerArgs`.

    Raises:
        ConfigurationError: a value is out of range or contradicts another.
    """

    enable_prefix_cache_offload: bool = flag(
        "Offload cached prefixes to host memory if the device has no room for them, and copy them "
        "back when a prompt begins with them.",
        _WORKER,
        default=False,
    )
    cpu_prefill_memory_utilization: float = flag(
        "Share of the machine's memory for offloaded prefixes, divided equally among the workers "
        "that taco_llm serve starts on it. The default takes less if less is free; a share that "
        "is given must be free.",
        _WORKER,
        default=0.3,
        parse=float,
        metavar="SHARE",
    )
    swap_space: float | None = flag(
        "GiB of host memory for the offloaded prefixes of each worker, instead of "
        "--cpu-prefill-memory-utilization.",
        _WORKER,
        default=None,
        parse=float,
        metavar="GIB",
    )
    apc_offload_not_lazy: bool = flag(
        "Start a step only when all layers of its offloaded prefixes are loaded. Without it a "
        "step starts when the first layer is loaded.",
        _WORKER,
        default=False,
    )
    kv_disk_path: str | None = flag(
        "Directory that keeps cached prefixes over restarts. Its files contain what users wrote.",
        _WORKER,
        default=None,
        metavar="DIR",
    )
    kv_disk_space: float = flag(
        "Maximum GiB that the files in --kv-disk-path take.",
        _WORKER,
        default=16.0,
        parse=float,
        metavar="GIB",
    )

    def __post_init__(self) -> None:
        SpeculationArgs.__post_init__(self)
        if not 0 < self.cpu_prefill_memory_utilization <= 1:
            raise ConfigurationError(
                "cpu_prefill_memory_utilization must be above 0 and at most 1, got "
                f"{self.cpu_prefill_memory_utilization}"
            )
        if self.swap_space is not None and not 0 <= self.swap_space < math.inf:
            raise ConfigurationError(
                f"swap_space must be a number from 0 on, got {self.swap_space}"
            )
        if not 0 < self.kv_disk_space < math.inf:
            raise ConfigurationError(f"kv_disk_space must be above 0, got {self.kv_disk_space}")
        if self.enable_prefix_cache_offload:
            if not self.enable_prefix_caching:
                raise ConfigurationError(
                    "enable_prefix_cache_offload needs enable_prefix_caching: there is nothing "
                    "else to offload"
                )
            if self.swap_space == 0:
                raise ConfigurationError(
                    "enable_prefix_cache_offload and swap_space 0 contradict each other"
                )
        elif self.kv_disk_path is not None:
            raise ConfigurationError(
                "kv_disk_path needs enable_prefix_cache_offload: blocks pass through host memory"
            )

    def host_kv_bytes(self, num_workers: int = 1) -> int:
        """Memory for the host tier of each of `num_workers` on this machine."""
        if not self.enable_prefix_cache_offload:
            for name, asks in {
                "swap_space": self.swap_space,
                "preemption_mode swap": self.preemption_mode == "swap",
            }.items():
                if asks:
                    logger.warning("%s has no effect without enable_prefix_cache_offload", name)
            return 0
        if self.swap_space is not None:
            return int(self.swap_space * _GIB)

        import psutil  # which a gateway's image need not have

        total = psutil.virtual_memory().total
        return int(total * self.cpu_prefill_memory_utilization / num_workers)

    def kv_disk_bytes(self) -> int:
        return int(self.kv_disk_space * _GIB)
