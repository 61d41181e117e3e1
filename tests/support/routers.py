"""Routers of each kind for the tests of kernels, and logits with ties."""

import torch
from torch import Tensor

from taco_kernels.router import Router

# Softmax routers that have a bias: as in ERNIE 4.5, and with other options.
_BIASED = (
    Router("softmax", 64, 6, renormalize=True),
    Router("softmax", 24, 5, scale=1.5, num_groups=4, top_groups=2),
)
# As in OLMoE, Mixtral, GPT-OSS, DeepSeek-V2, DeepSeek-V3, GLM-4-MoE and PhiMoE; then odd sizes.
ROUTERS = (
    Router("softmax", 64, 8),
    Router("softmax", 8, 2, renormalize=True),
    Router("softmax_topk", 32, 4),
    Router("softmax", 160, 6, scale=16.0, num_groups=8, top_groups=3),
    Router("sigmoid", 256, 8, True, 2.5, 8, 4, "sum_of_two"),
    Router("sigmoid", 160, 8, renormalize=True),
    Router("sparsemixer", 16, 2, jitter=0.01),
    Router("sparsemixer", 5, 2, jitter=0.3),
    Router("softmax", 1, 1),
    Router("sigmoid", 21, 4, False, 1.0, 7, 5, "sum_of_two"),
    Router("sigmoid", 6, 3, num_groups=3, top_groups=2, group_score="sum_of_two"),
    Router("softmax_topk", 40, 33),
    *_BIASED,
)


def router_name(router: Router) -> str:
    return f"{router.kind}-{router.num_experts}-{router.top_k}"


def tied_logits(router: Router, num_rows: int, seed: int = 0) -> Tensor:
    """float32 [num_rows, num_experts]; in half of the rows many logits are equal."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(num_rows, router.num_experts, generator=generator)
    logits[::2] = logits[::2].round()
    return logits


def bias_of(router: Router) -> Tensor | None:
    """float32 [num_experts] for a router with a bias, with ties."""
    if router.kind != "sigmoid" and router not in _BIASED:
        return None
    generator = torch.Generator().manual_seed(router.num_experts)
    return torch.randn(router.num_experts, generator=generator).round(decimals=1)
