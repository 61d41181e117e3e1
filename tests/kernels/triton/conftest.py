"""Triton kernels run on the GPU where there is one, else in Triton's interpreter."""

import pytest
import torch

from support import triton_interpreter

triton_interpreter.install()


@pytest.fixture
def device() -> torch.device:
    """Where kernels run."""
    return triton_interpreter.DEVICE
