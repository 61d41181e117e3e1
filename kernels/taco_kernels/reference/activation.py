"""Reference of activations, plain and as the gate of a product."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

# The slope of quick_gelu, and of gpt-oss's swiglu.
ALPHA = 1.702


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(ALPHA * x)


def _relu2(x: Tensor) -> Tensor:
    return F.relu(x).square()


# silu: Elfwing et al. 2017; gelu, its approximation by tanh, quick_gelu: Hendrycks and Gimpel 2016;
# relu2: So et al. 2021.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "relu2": _relu2,
    "quick_gelu": _quick_gelu,
}
GATED_ACTIVATIONS = (*ACTIVATIONS, "swiglu_clipped")


def activate(x: Tensor, kind: str) -> Tensor:
    """One of ACTIVATIONS of each number, in x's dtype.

    Raises:
        ValueError: the kind is unknown.
    """
    check_activation(kind, gated=False)
    return ACTIVATIONS[kind](x)


def act_mul(
    gate_up: Tensor, kind: str = "silu", *, alpha: float = ALPHA, limit: float = math.inf
) -> Tensor:
    """act(gate) * up (GLU variants, Shazeer 2020); [..., 2 * size], the gate first, to [..., size].

    Args:
        kind: one of GATED_ACTIVATIONS. "swiglu_clipped" (gpt-oss; Phi-3-small's "gegelu") is
            g * sigmoid(alpha * g) * (u + 1) with g = min(gate, limit) and u = up within
            [-limit, limit].

    Raises:
        ValueError: the kind is unknown, or the limit is not positive.
    """
    check_activation(kind, gated=True, limit=limit)
    gate, up = gate_up.chunk(2, dim=-1)
    if kind != "swiglu_clipped":
        return ACTIVATIONS[kind](gate) * up
    gate, up = gate.float().clamp(max=limit), up.float().clamp(-limit, limit)
    return (gate * torch.sigmoid(alpha * gate) * (up + 1)).to(gate_up.dtype)


def check_activation(kind: str, *, gated: bool, limit: float = math.inf) -> None:
    """Raise ValueError unless the kind is known and the limit positive."""
    known = GATED_ACTIVATIONS if gated else tuple(ACTIVATIONS)
    if kind not in known:
        raise ValueError(f"unknown activation {kind!r}; known: {', '.join(known)}")
    if not limit > 0:
        raise ValueError(f"the limit of {kind} must be positive, not {limit}")
