"""Activation functions by the names of the plan."""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor

_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


def activate(x: Tensor, kind: str) -> Tensor:
    return _FUNCTIONS[kind](x)
