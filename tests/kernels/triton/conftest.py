"""Triton kernels run on the GPU where there is one, else in Triton's interpreter."""

from collections.abc import Iterator

import pytest
import torch

from support import triton_interpreter

triton_interpreter.install()


@pytest.fixture
def device() -> torch.device:
    """Where kernels run."""
    return triton_interpreter.DEVICE


@pytest.fixture
def tensors_on_device(device: torch.device) -> Iterator[None]:
    """Tensors are made where kernels run, unless a test says otherwise."""
    if device.type == "cpu":
        yield
        return
    with device:
        yield
