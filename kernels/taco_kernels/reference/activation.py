"""Reference of the gated activation of an MLP."""

import torch.nn.functional as F
from torch import Tensor


def silu_mul(gate_up: Tensor) -> Tensor:
    """SwiGLU (Shazeer 2020): silu(gate) * up; [..., 2 * size], the gate first, to [..., size]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up
