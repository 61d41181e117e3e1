"""Routers of a mixture of experts. Reference: `taco_kernels.reference.routing`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from taco_kernels.router import Router
from taco_kernels.triton.row_statistics import ordered_keys

# Below the key of every score.
_NO_CHOICE = tl.constexpr(-(2**63))


def route(logits: Tensor, router: Router, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Chooses the experts of each row, in one launch and without host synchronization.

    Args:
        logits: [num_rows, num_experts]; the last stride must be 1.
        bias: float32 [num_experts], contiguous, added to the scores for the choice.

    Returns:
        Expert ids, int32 [num_rows, top_k], best first, and their weights, float32.

    Raises:
        ValueError: a tensor has the wrong shape, dtype or strides, or the router cannot use a bias.
    """
    num_experts = router.num_experts
    if logits.ndim != 2 or logits.shape[1] != num_experts or logits.stride(1) != 1:
        raise ValueError(
            f"logits must be [rows, {num_experts}] with adjacent numbers, not "
            f"{list(logits.shape)} with strides {logits.stride()}"
        )
    if bias is not None:
        if not router.can_have_bias:
            raise ValueError(f"a {router.kind} router cannot use a bias")
        if bias.dtype != torch.float32 or bias.shape != (num_experts,) or bias.stride(0) != 1:
            raise ValueError(
                f"bias must be contiguous float32 [{num_experts}], not {bias.dtype} "
                f"{list(bias.shape)}"
            )
    shape = (logits.shape[0], router.top_k)
    ids = torch.empty(shape, dtype=torch.int32, device=logits.device)
    weights = torch.empty(shape, dtype=torch.float32, device=logits.device)
    if logits.shape[0] == 0:
        return ids, weights
    block = triton.next_power_of_2(num_experts)
    _route_kernel[(logits.shape[0],)](
        logits,
        bias,
        ids,
        weights,
        logits.stride(0),
        router.scale,
        2 * router.jitter,
        NUM_EXPERTS=num_experts,
        TOP_K=router.top_k,
        NUM_GROUPS=router.num_groups,
        TOP_GROUPS=router.top_groups,
        SUM_OF_TWO=router.group_score == "sum_of_two",
        IS_SIGMOID=router.kind == "sigmoid",
        IS_SPARSEMIXER=router.kind == "sparsemixer",
        # Those of a softmax are then probabilities among the chosen experts.
        RENORMALIZE=router.renormalize or router.kind == "softmax_topk",
        HAS_BIAS=bias is not None,
        BLOCK=block,
        GROUP_BLOCK=triton.next_power_of_2(router.num_groups),
        TOP_BLOCK=triton.next_power_of_2(router.top_k),
        num_warps=1 if block <= 256 else 4,
    )
    return ids, weights


@triton.jit
def _choice_keys(scores, indices, BLOCK: tl.constexpr):
    """int64 keys of (score, index) pairs: greater scores first, then lower indices."""
    return ordered_keys(scores).to(tl.int64) * BLOCK + (BLOCK - 1 - indices)


@triton.jit
def _index_of(key, BLOCK: tl.constexpr):
    return (BLOCK - 1 - (key & (BLOCK - 1))).to(tl.int32)


@triton.jit
def _best_groups(scores, keys, groups_of, NUM_GROUPS, TOP_GROUPS, SUM_OF_TWO, GROUP_BLOCK):
    """Whether each expert's group is one of the best."""
    groups = tl.arange(0, GROUP_BLOCK)
    group_keys = tl.full([GROUP_BLOCK], _NO_CHOICE, tl.int64)
    for group in range(NUM_GROUPS):
        own = tl.where(groups_of == group, keys, _NO_CHOICE)
        best = tl.max(own, axis=0)
        score = tl.sum(tl.where(own == best, scores, 0.0), axis=0)
        if SUM_OF_TWO:
            rest = tl.where(own == best, _NO_CHOICE, own)
            second = tl.max(rest, axis=0)
            is_second = (rest == second) & (second != _NO_CHOICE)
            score += tl.sum(tl.where(is_second, scores, 0.0), axis=0)
        all_scores = tl.zeros([GROUP_BLOCK], tl.float32) + score
        group_keys = tl.where(
            groups == group, _choice_keys(all_scores, groups, GROUP_BLOCK), group_keys
        )
    is_kept = groups_of < 0
    for _ in range(TOP_GROUPS):
        best = tl.max(group_keys, axis=0)
        is_kept = is_kept | (groups_of == _index_of(best, GROUP_BLOCK))
        group_keys = tl.where(group_keys == best, _NO_CHOICE, group_keys)
    return is_kept


@triton.jit
def _softmax_scores(numbers, is_expert):
    """The softmax over all experts, rounded from float64 like sigmoids."""
    wide = tl.where(is_expert, numbers, float("-inf")).to(tl.float64)
    powers = tl.exp(wide - tl.max(wide, axis=0))
    return (powers / tl.sum(powers, axis=0)).to(tl.float32)


@triton.jit
def _share_of_near(numbers, is_candidate, greatest, distance):
    """Sparsemixer: the softmax of the greatest logit among the candidates near it."""
    factor = tl.maximum(tl.abs(numbers), greatest)
    is_far = tl.div_rn(greatest - numbers, factor) > distance
    return 1.0 / tl.sum(tl.where(is_candidate & ~is_far, tl.exp(numbers - greatest), 0.0), axis=0)


@triton.jit
def _route_kernel(
    logits,
    bias,
    ids,
    weights,
    logits_row,
    scale,
    distance,
    NUM_EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
    SUM_OF_TWO: tl.constexpr,
    IS_SIGMOID: tl.constexpr,
    IS_SPARSEMIXER: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP_BLOCK: tl.constexpr,
    TOP_BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    experts = tl.arange(0, BLOCK)
    is_expert = experts < NUM_EXPERTS
    numbers = tl.load(logits + row * logits_row + experts, mask=is_expert, other=0.0)
    numbers = numbers.to(tl.float32)
    scores = numbers
    if IS_SIGMOID:
        scores = (1.0 / (1.0 + tl.exp(-numbers.to(tl.float64)))).to(tl.float32)
    choices = scores
    if HAS_BIAS:
        if not IS_SIGMOID:
            choices = _softmax_scores(numbers, is_expert)
        choices += tl.load(bias + experts, mask=is_expert, other=0.0)
    keys = tl.where(is_expert, _choice_keys(choices, experts, BLOCK), _NO_CHOICE)
    if TOP_GROUPS < NUM_GROUPS:
        is_kept = _best_groups(
            choices,
            keys,
            experts // (NUM_EXPERTS // NUM_GROUPS),
            NUM_GROUPS,
            TOP_GROUPS,
            SUM_OF_TWO,
            GROUP_BLOCK,
        )
        keys = tl.where(is_kept, keys, _NO_CHOICE)

    ranks = tl.arange(0, TOP_BLOCK)
    chosen = tl.zeros([TOP_BLOCK], tl.int32)
    chosen_scores = tl.zeros([TOP_BLOCK], tl.float32)
    for rank in range(TOP_K):
        best = tl.max(keys, axis=0)
        score = tl.sum(tl.where(keys == best, scores, 0.0), axis=0)
        chosen = tl.where(ranks == rank, _index_of(best, BLOCK), chosen)
        chosen_scores = tl.where(ranks == rank, score, chosen_scores)
        keys = tl.where(keys == best, _NO_CHOICE, keys)

    is_chosen = ranks < TOP_K
    greatest = tl.sum(tl.where(ranks == 0, chosen_scores, 0.0), axis=0)
    if HAS_BIAS:  # the first expert's logit need not be the greatest
        greatest = tl.max(tl.where(is_chosen, chosen_scores, float("-inf")), axis=0)
    if IS_SIGMOID:
        shares = chosen_scores
        if RENORMALIZE:
            shares = shares / (tl.sum(tl.where(is_chosen, shares, 0.0), axis=0) + 1e-20)
    elif IS_SPARSEMIXER:
        first = tl.sum(tl.where(ranks == 0, chosen, 0), axis=0)
        second = tl.sum(tl.where(ranks == 1, chosen_scores, 0.0), axis=0)
        first_share = _share_of_near(numbers, is_expert, greatest, distance)
        others = is_expert & (experts != first)
        second_share = _share_of_near(numbers, others, second, distance)
        shares = tl.where(ranks == 0, first_share, second_share)
    else:
        shares = tl.exp(chosen_scores - greatest)
        if RENORMALIZE:
            total = tl.sum(tl.where(is_chosen, shares, 0.0), axis=0)
        else:
            total = tl.sum(tl.where(is_expert, tl.exp(numbers - greatest), 0.0), axis=0)
        shares = shares / total
    tl.store(ids + row * TOP_K + ranks, chosen, mask=is_chosen)
    tl.store(weights + row * TOP_K + ranks, shares * scale, mask=is_chosen)
