"""Whether the CPU kernels serve, and with how many threads."""

from __future__ import annotations

import logging
from collections.abc import Callable

from taco_kernels.library import CpuKernels, KernelLibraryError, UnsupportedCpuError, load
from taco_kernels.native.cores import Cores, available_cores

logger = logging.getLogger("taco.worker")


def start_cpu_kernels(
    num_threads: int | None,
    *,
    cores: Cores | None = None,
    load_kernels: Callable[..., CpuKernels] = load,
) -> CpuKernels | None:
    """The kernels with a pool of threads, or None where torch must serve, after one warning.

    Args:
        num_threads: None is one for each core.
        cores: what the process may compute on; None asks the system.

    Raises:
        ValueError: this CPU lacks AVX2, or there are more threads than cores.
    """
    cores = cores or available_cores()
    count = cores.num_threads(num_threads)
    try:
        return load_kernels(count, cores.bindings(count))
    except KernelLibraryError as error:
        logger.warning("torch serves, many times slower than the CPU kernels: %s", error)
        return None
    except UnsupportedCpuError as error:
        raise ValueError(str(error)) from error
