"""Starts the CPU kernels with their thread pool, or falls back to torch."""

from __future__ import annotations

import logging
from collections.abc import Callable

from taco_kernels.instruction_sets import UnsupportedCpuError
from taco_kernels.library import CpuKernels, KernelLibraryError, load
from taco_kernels.native.cores import Cores, available_cores

logger = logging.getLogger("taco.worker")


def start_cpu_kernels(
    num_threads: int | None,
    *,
    cores: Cores | None = None,
    load_kernels: Callable[..., CpuKernels] = load,
) -> CpuKernels | None:
    """Start the kernels with a pool of threads; None, after one warning, if torch must serve.

    Args:
        num_threads: None means one for each core.
        cores: the cores that the process may use; None asks the system.

    Raises:
        ValueError: this CPU lacks AVX2, or there are more threads than cores.
    """
    cores = cores or available_cores()
    count = cores.num_threads(num_threads)
    try:
        return load_kernels(count, cores.bindings(count))
    except KernelLibraryError as error:
        logger.warning("CPU kernels unavailable; torch serves, many times slower: %s", error)
        return None
    except UnsupportedCpuError as error:
        raise ValueError(str(error)) from error
