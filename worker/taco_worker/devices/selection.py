"""Resolves `--device` and checks that the device can run the model."""

from __future__ import annotations

import re

import torch

from taco_worker.devices.byte_units import gibibytes

_BF16_CAPABILITY = (8, 0)
_E4M3_CAPABILITY = (8, 9)


def find_device(name: str) -> torch.device:
    """Resolve `--device NAME`; auto means a GPU if one is usable, else the CPU.

    `auto:N` means GPU N if GPUs are usable; several workers of one machine use it.

    Raises:
        ValueError: the device does not exist or cannot be used; the message says why.
    """
    match = re.fullmatch(r"cpu|(auto|cuda)(?::(\d+))?", name)
    if match is None:
        raise ValueError(f"unknown device {name!r}; known: auto, cpu, cuda, cuda:N")
    if name == "cpu" or (match[1] == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if reason := _why_no_gpu():
        raise ValueError(f"device {name!r} cannot be used: {reason}")
    index = int(match[2] or 0)
    if index >= torch.cuda.device_count():
        raise ValueError(f"device {name!r}: there are only {torch.cuda.device_count()} GPUs")
    return torch.device("cuda", index)


def check_dtype(dtype: torch.dtype, name: str, capability: tuple[int, int]) -> None:
    """Raises ValueError if the GPU is too old for the model's dtype."""
    if dtype == torch.bfloat16 and capability < _BF16_CAPABILITY:
        raise ValueError(
            f"{name} (compute capability {capability[0]}.{capability[1]}) has no bfloat16, which "
            f"needs {_BF16_CAPABILITY[0]}.{_BF16_CAPABILITY[1]}: use --dtype float16"
        )


def check_kv_dtype(kv_dtype: torch.dtype, name: str, capability: tuple[int, int]) -> None:
    """Raises ValueError if the GPU is too old for the dtype of the KV cache."""
    if kv_dtype == torch.float8_e4m3fn and capability < _E4M3_CAPABILITY:
        raise ValueError(
            f"{name} (compute capability {capability[0]}.{capability[1]}) has no fp8_e4m3, which "
            f"needs {_E4M3_CAPABILITY[0]}.{_E4M3_CAPABILITY[1]}: use --kv-cache-dtype int8 or "
            "fp8_e5m2"
        )


def check_weights_fit(weight_bytes: int, free_bytes: int, what: str = "GPU") -> None:
    """Raises ValueError if the device's free memory does not hold the weights."""
    if weight_bytes > free_bytes:
        raise ValueError(
            f"the weights take {gibibytes(weight_bytes)}, and only {gibibytes(free_bytes)} of "
            f"{what} memory are free: {gibibytes(weight_bytes - free_bytes)} are missing"
        )


def _why_no_gpu() -> str:
    """Why no GPU is usable; empty if one is."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} was built without CUDA"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:  # no driver, a driver too old, or no GPU
        return str(error).partition("\n")[0]
    return "" if torch.cuda.device_count() else "there is no NVIDIA GPU"
