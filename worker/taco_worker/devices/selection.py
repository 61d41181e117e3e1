"""Which device serves, and what keeps one from serving."""

from __future__ import annotations

import re

import torch

from taco_worker.devices.byte_units import gibibytes

_BF16_CAPABILITY = (8, 0)


def find_device(name: str) -> torch.device:
    """The device for `--device NAME`; auto is a GPU where one can be used.

    Workers of one machine that are told auto get `auto:N`: GPU N where GPUs can be used.

    Raises:
        ValueError: there is no such device, or it cannot be used: why.
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
    """Raises ValueError for a GPU too old for a model's dtype."""
    if dtype == torch.bfloat16 and capability < _BF16_CAPABILITY:
        raise ValueError(
            f"{name} (compute capability {capability[0]}.{capability[1]}) has no bfloat16, which "
            f"needs {_BF16_CAPABILITY[0]}.{_BF16_CAPABILITY[1]}: use --dtype float16"
        )


def check_weights_fit(weight_bytes: int, free_bytes: int, what: str = "GPU") -> None:
    """Raises ValueError for weights that the device's memory does not hold."""
    if weight_bytes > free_bytes:
        raise ValueError(
            f"the weights take {gibibytes(weight_bytes)}, and only {gibibytes(free_bytes)} of "
            f"{what} memory are free: {gibibytes(weight_bytes - free_bytes)} are missing"
        )


def _why_no_gpu() -> str:
    """Empty where a GPU can be used."""
    if torch.version.cuda is None:
        return f"torch {torch.__version__} was built without CUDA"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:  # no driver, none that fits, or no GPU
        return str(error).partition("\n")[0]
    return "" if torch.cuda.device_count() else "there is no NVIDIA GPU"
