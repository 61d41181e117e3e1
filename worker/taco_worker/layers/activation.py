"""Activation functions by the names that Hugging Face configs use."""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor

_gelu_tanh = partial(F.gelu, approximate="tanh")

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu": F.relu,
    "silu": F.silu,
}


def find_activation(name: str) -> Callable[[Tensor], Tensor]:
    """Raises ValueError for an unknown name."""
    if name not in _ACTIVATIONS:
        known = ", ".join(sorted(_ACTIVATIONS))
        raise ValueError(f"unknown activation {name!r}; known: {known}")
    return _ACTIVATIONS[name]
