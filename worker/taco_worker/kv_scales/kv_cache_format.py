"""Chooses the format of a model's KV cache: its dtype, and where the scales of float8 come from."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from taco_kernels.kv_entry import EntryScales
from taco_kernels.kv_format import FLOAT8_DTYPES, KVFormat
from taco_proto.config import WorkerConfig
from taco_worker.kv_scales.checkpoint_scales import read_checkpoint_scales
from taco_worker.kv_scales.scales_file import read_scales_file
from taco_worker.kv_scales.stored_kv_cache import wanted_kv_cache_dtype
from taco_worker.models.config import ModelConfig
from taco_worker.models.dtypes import dtype_name, resolve_kv_dtype

logger = logging.getLogger("taco.worker")


def choose_kv_format(
    config: WorkerConfig,
    model: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
) -> KVFormat:
    """The format of the KV cache.

    The scales of float8 are those of `quantization_param_path`, else the checkpoint's; else each
    token and head has its own.

    Args:
        dtype: of the model.

    Raises:
        ValueError: the device does not support the dtype, or scales are missing or invalid.
    """
    stored, path = model.stored_kv_cache, config.quantization_param_path
    name = wanted_kv_cache_dtype(config.kv_cache_dtype, stored)
    kv_dtype = resolve_kv_dtype(name, dtype, device)
    if name == "auto" and stored is not None:
        logger.warning(
            "the KV cache is %s: the checkpoint's %s is not supported",
            dtype_name(kv_dtype),
            stored.description,
        )
    if kv_dtype not in FLOAT8_DTYPES:
        if path is not None:
            logger.warning(
                "quantization_param_path has no effect: the KV cache is %s, which has no scales of "
                "layers; use kv_cache_dtype fp8",
                dtype_name(kv_dtype),
            )
        return KVFormat(kv_dtype)
    scales: tuple[EntryScales, ...] | None = None
    source = "each token and head"
    if path is not None:
        scales = read_scales_file(Path(path), model, dtype_name(kv_dtype))
        source = path
    else:
        if stored is not None:
            stored.check_scales()
        if stored is None or stored.has_entry_scales:
            scales = read_checkpoint_scales(model)
            source = source if scales is None else "the checkpoint"
    logger.info("KV cache in %s, scales of %s", dtype_name(kv_dtype), source)
    return KVFormat(kv_dtype, scales)
