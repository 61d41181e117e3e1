"""Reference of rotary position embedding (RoFormer, Su et al. 2021), halves as in GPT-NeoX."""

import torch
from torch import Tensor


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair (x[i], x[i + head_dim / 2]) by its position's angle.

    Args:
        x: [num_tokens, num_heads, head_dim].
        cos, sin: float32 [num_tokens, head_dim / 2].
    """
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return rotated.to(x.dtype)
