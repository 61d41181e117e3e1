"""Reference of the routers of a mixture of experts, in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from taco_kernels.router import Router


def route(logits: Tensor, router: Router, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Chooses experts as `router` says.

    Softmax routers without a bias choose by the logits, which have the order of the probabilities
    without ties from rounding. Sigmoids and probabilities are rounded from float64, so that every
    back end adds the bias to the same numbers.

    Args:
        logits: [num_rows, num_experts].
        bias: [num_experts], added to the sigmoids or probabilities for the choice.

    Returns:
        Expert ids, int32 [num_rows, top_k], best first, and their weights, float32.

    Raises:
        ValueError: the shapes do not fit, or the router cannot use a bias.
    """
    if logits.ndim != 2 or logits.shape[1] != router.num_experts:
        raise ValueError(f"logits must be [rows, {router.num_experts}], not {list(logits.shape)}")
    if bias is not None and (not router.can_have_bias or bias.shape != (router.num_experts,)):
        raise ValueError(f"a {router.kind} router cannot use a bias {list(bias.shape)}")
    logits = logits.float()
    scores = logits
    if router.kind == "sigmoid":
        scores = (1 / (1 + torch.exp(-logits.double()))).float()
    elif bias is not None:
        scores = logits.double().softmax(1).float()
    choices = scores if bias is None else scores + bias.float()
    ids = _best(_of_best_groups(choices, router), router.top_k)
    if router.kind == "sparsemixer":
        weights = _sparsemixer(logits, ids, router.jitter)
    elif router.kind == "sigmoid":
        weights = scores.gather(1, ids)
        if router.renormalize:
            weights = weights / (weights.sum(1, keepdim=True) + 1e-20)
    elif router.kind == "softmax_topk" or router.renormalize:
        weights = logits.gather(1, ids).softmax(1)
    else:
        weights = logits.softmax(1).gather(1, ids)
    return ids.int(), weights * router.scale


def _best(scores: Tensor, count: int) -> Tensor:
    """Indices of the greatest scores of each row; of equal ones the lower index is first."""
    return scores.sort(dim=1, descending=True, stable=True).indices[:, :count]


def _of_best_groups(scores: Tensor, router: Router) -> Tensor:
    """The scores, -inf outside of the best groups."""
    if router.top_groups == router.num_groups:
        return scores
    groups = scores.unflatten(1, (router.num_groups, -1))
    size = min(groups.shape[2], 1 if router.group_score == "max" else 2)
    best = _best(groups.topk(size, dim=2).values.sum(2), router.top_groups)
    is_best = torch.zeros(groups.shape[:2], dtype=torch.bool, device=scores.device)
    is_best.scatter_(1, best, True)
    return groups.masked_fill(~is_best.unsqueeze(2), -torch.inf).flatten(1)


def _sparsemixer(logits: Tensor, ids: Tensor, jitter: float) -> Tensor:
    """SparseMixer-v2 without sampling (Liu et al. 2024, "GRIN: GRadient-INformed MoE"): float32
    [num_rows, 2]."""
    weights = []
    for rank in range(2):
        greatest = logits.gather(1, ids[:, rank : rank + 1])
        factor = torch.maximum(logits.abs(), greatest)
        kept = logits.masked_fill((greatest - logits) / factor > 2 * jitter, -torch.inf)
        if rank == 1:
            kept = kept.scatter(1, ids[:, :1], -torch.inf)
        weights.append(kept.softmax(1).gather(1, ids[:, rank : rank + 1]))
    return torch.cat(weights, dim=1)
