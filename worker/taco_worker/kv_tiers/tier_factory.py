"""Creates a worker's host and disk tiers from its configuration."""

from __future__ import annotations

import logging
import weakref
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from taco_kernels.native.memory import allocate
from taco_proto.config import WorkerConfig
from taco_worker.devices.byte_units import mebibytes
from taco_worker.devices.copy_stream import CudaCopyStream
from taco_worker.devices.cpu_memory import available_cpu_memory
from taco_worker.devices.transfers import Transfers
from taco_worker.kv_tiers.block_copies import choose_block_copier
from taco_worker.kv_tiers.disk_block_store import DiskBlockStore
from taco_worker.kv_tiers.fingerprint import fingerprint
from taco_worker.kv_tiers.host_block_store import HostBlockStore, count_parts
from taco_worker.kv_tiers.store_directory import StoreDirectory
from taco_worker.models.step_model import StepModel
from taco_worker.models.weight_files import CheckpointFiles

logger = logging.getLogger("taco.worker")

# A block's file also has a header and occupies whole blocks of the file system.
_MAX_HEAD_BYTES = 4096


def fit_host_tier(config: WorkerConfig) -> WorkerConfig:
    """Shrink the host tier to the available memory.

    If the default size does not fit, the tier takes half of this worker's share of the available
    memory. The other half is for the KV cache of a CPU.

    Raises:
        ValueError: a configured size does not fit.
    """
    available = available_cpu_memory()
    if config.host_kv_bytes <= available // config.num_local_workers:
        return config
    if config.host_kv_may_shrink:
        fitting = available // config.num_local_workers // 2
        logger.warning(
            "the host tier takes %s instead of %s: %s of memory are available for %d worker(s)",
            mebibytes(fitting),
            mebibytes(config.host_kv_bytes),
            mebibytes(available),
            config.num_local_workers,
        )
        return replace(config, host_kv_bytes=fitting)
    if config.host_kv_bytes > available:
        raise ValueError(
            f"the host tier takes {mebibytes(config.host_kv_bytes)}, and only "
            f"{mebibytes(available)} of memory are available"
        )
    return config


def make_host_block_store(
    config: WorkerConfig, model: StepModel, transfers: Transfers
) -> HostBlockStore:
    """Create the host tier of a model with an allocated KV cache; it may have no blocks.

    Raises:
        ValueError: its size holds no block, or its memory cannot be allocated.
    """
    rows = model.kv_rows
    num_blocks = config.host_kv_bytes // rows.shape[1]
    if config.host_kv_bytes and not num_blocks:
        raise ValueError(
            f"a host tier of {config.host_kv_bytes} bytes holds no block: one takes {rows.shape[1]}"
        )
    try:
        memory = allocate(num_blocks * rows.shape[1]).view(num_blocks, rows.shape[1])
        if transfers.overlaps and num_blocks:
            _pin(memory)
    except MemoryError as error:
        raise ValueError(f"no memory for the host tier: {error}") from error
    num_parts = count_parts(model.plan.kv_entries)
    return HostBlockStore(
        memory,
        rows,
        num_parts=num_parts,
        copy_stream=CudaCopyStream(transfers.device) if transfers.overlaps else None,
        is_lazy=config.lazy_loads,
        prepare_copies=choose_block_copier(transfers, rows.shape[1] // num_parts),
    )


def make_disk_block_store(
    config: WorkerConfig,
    checkpoint: CheckpointFiles,
    model: StepModel,
    host: HostBlockStore,
    max_model_len: int,
) -> DiskBlockStore | None:
    """Create the disk tier of a worker that serves up to `max_model_len` tokens; None if none is
    configured.

    Raises:
        ConfigurationError: its directory cannot be created.
        ValueError: there is no host tier, which it needs, or its size holds no file.
    """
    if config.kv_disk_path is None:
        return None
    if not host.num_blocks:
        raise ValueError("a disk tier needs a host tier: blocks pass through it")
    block_bytes = host.rows.shape[1]
    num_blocks = config.kv_disk_bytes // (block_bytes + _MAX_HEAD_BYTES)
    if not num_blocks:
        raise ValueError(f"a disk tier of {config.kv_disk_bytes} bytes holds no block")
    directory = StoreDirectory(
        Path(config.kv_disk_path),
        fingerprint(config, checkpoint, model, max_model_len),
        block_bytes,
        config.name,
    )
    return DiskBlockStore(directory, host.rows, num_blocks)


def _pin(rows: Tensor) -> None:
    """Pin `rows`, so that a GPU can copy from and to them, for as long as they exist.

    Torch rounds its own pinned memory up to powers of two, which can waste half of it.
    """
    runtime = torch.cuda.cudart()
    error = int(runtime.cudaHostRegister(rows.data_ptr(), rows.nbytes, 0))
    if error:
        raise MemoryError(f"CUDA cannot pin it (error {error})")
    weakref.finalize(rows, runtime.cudaHostUnregister, rows.data_ptr()).atexit = False
