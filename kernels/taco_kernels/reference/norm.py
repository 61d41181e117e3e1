"""Reference of norms over the last dimension, computed in float32 for any input dtype.

weight and bias are [size], or [num_heads, size] for heads with weights each (Cohere's norms of
queries and keys). Without a weight it is 1, without a bias 0.

They may be float32 beside narrower rows. Then the result is rounded once, as in models that norm in
float32 (Gemma); weights of x's dtype multiply numbers that were rounded (Llama).
"""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, bias: Tensor | None = None) -> Tensor:
    """Root mean square norm (Zhang and Sennrich 2019): x [..., size]."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    if weight is None:
        weight = torch.ones((), dtype=x.dtype, device=x.device)
    scaled = weight * (normed if weight.dtype == torch.float32 else normed.to(x.dtype))
    return scaled.to(x.dtype) if bias is None else (scaled.float() + bias.float()).to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Layer norm (Ba et al. 2016): x [..., size]."""
    wide = x.float()
    centered = wide - wide.mean(dim=-1, keepdim=True)
    normed = centered * torch.rsqrt(centered.square().mean(dim=-1, keepdim=True) + eps)
    scaled = normed if weight is None else normed * weight.float()
    return (scaled if bias is None else scaled + bias.float()).to(x.dtype)
