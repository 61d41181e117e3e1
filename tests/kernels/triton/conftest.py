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


@pytest.fixture(autouse=True)
def _tensors_are_made_where_kernels_run(device: torch.device) -> Iterator[None]:
    if device.type == "cpu":
        yield
        return
    with device:
        yield
