"""Resolves `--dtype` and `--kv-cache-dtype` to torch dtypes."""

from __future__ import annotations

import logging

import torch

logger = logging.getLogger("taco.worker")

_DTYPES = {
    "half": torch.float16,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float": torch.float32,
    "float32": torch.float32,
}
# Dtypes of a KV cache, other than the model's own dtype.
_CUDA_KV_DTYPES = {
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
_CPU_KV_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, **_CUDA_KV_DTYPES}


def resolve_dtype(name: str, checkpoint_dtype: str | None, device: torch.device) -> torch.dtype:
    """The dtype for `--dtype NAME`.

    "auto" is the dtype that config.json names, or float32 if it names none. One exception: on a CPU
    a float16 checkpoint runs as bfloat16. It is as small, and the CPU kernels have no other 16-bit
    format. It rounds weights from 11 to 8 significant bits.

    An explicit float16 is computed in float32 on a CPU. Float32 holds every float16 number exactly,
    so the result loses no digits, but it takes twice the memory.

    Raises:
        ValueError: the name, or the checkpoint's own dtype, is not supported.
    """
    if name != "auto":
        dtype = _find(name)
        if dtype == torch.float16 and device.type == "cpu":
            logger.warning(
                "dtype %s runs as float32 on a CPU: exact, but twice as large; bfloat16 is as "
                "small and less precise",
                name,
            )
            return torch.float32
        return dtype
    dtype = _find((checkpoint_dtype or "float32").removeprefix("torch."))
    if dtype == torch.float16 and device.type == "cpu":
        return torch.bfloat16
    return dtype


def resolve_kv_dtype(name: str, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype for `--kv-cache-dtype NAME` of a model of `dtype`.

    Raises:
        ValueError: the device does not support a KV cache of that dtype.
    """
    if name in ("auto", dtype_name(dtype)):
        return dtype
    known = _CPU_KV_DTYPES if device.type == "cpu" else _CUDA_KV_DTYPES
    if name not in known:
        raise ValueError(
            f"unknown kv_cache_dtype {name!r}; known on this device: auto, {', '.join(known)}"
        )
    return known[name]


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _find(name: str) -> torch.dtype:
    if name not in _DTYPES:
        raise ValueError(f"unknown dtype {name!r}; known: auto, {', '.join(_DTYPES)}")
    return _DTYPES[name]
