"""Reference of norms over the last dimension, computed in float32 for any input dtype."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm (Zhang and Sennrich 2019): x [..., hidden], weight [hidden]."""
    wide = x.float()
    inverse_rms = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return weight * (wide * inverse_rms).to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Layer norm (Ba et al. 2016): x [..., hidden], weight and bias [hidden]."""
    wide = x.float()
    centered = wide - wide.mean(dim=-1, keepdim=True)
    inverse_std = torch.rsqrt(centered.square().mean(dim=-1, keepdim=True) + eps)
    return (centered * inverse_std * weight.float() + bias.float()).to(x.dtype)
