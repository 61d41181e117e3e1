"""Routers of a mixture of experts on the CPU. Reference: `taco_kernels.reference.routing`."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from taco_kernels.cpu import structs
from taco_kernels.library import CpuKernels
from taco_kernels.router import GROUP_SCORES, ROUTER_KINDS, Router


def route(
    kernels: CpuKernels, logits: Tensor, router: Router, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Chooses the experts of each row. A row's bits do not depend on the other rows.

    Args:
        logits: float32 [num_rows, num_experts], each row contiguous.
        bias: float32 [num_experts], contiguous, added to the scores for the choice.

    Returns:
        Expert ids, int32 [num_rows, top_k], best first, and their weights, float32.

    Raises:
        ValueError: a tensor has the wrong type or shape, or the router cannot use a bias.
    """
    if (
        logits.dtype != torch.float32
        or logits.ndim != 2
        or logits.shape[1] != router.num_experts
        or (router.num_experts > 1 and logits.stride(1) != 1)
    ):
        raise ValueError(
            f"logits must be float32 [rows, {router.num_experts}] with contiguous rows, not "
            f"{logits.dtype} {list(logits.shape)}"
        )
    if bias is not None:
        if not router.can_have_bias:
            raise ValueError(f"a {router.kind} router cannot use a bias")
        if (
            bias.dtype != torch.float32
            or bias.shape != (router.num_experts,)
            or not bias.is_contiguous()
        ):
            raise ValueError(
                f"bias must be contiguous float32 [{router.num_experts}], not {bias.dtype} "
                f"{list(bias.shape)}"
            )
    count = logits.shape[0]
    ids = torch.empty((count, router.top_k), dtype=torch.int32)
    weights = torch.empty((count, router.top_k))
    routing = structs.Routing(
        router_struct(router),
        count,
        logits.data_ptr(),
        logits.stride(0),
        None if bias is None else bias.data_ptr(),
        ids.data_ptr(),
        router.top_k,
        weights.data_ptr(),
        router.top_k,
    )
    kernels.lib.taco_route(kernels.pool, ctypes.byref(routing))
    return ids, weights


def router_struct(router: Router) -> structs.Router:
    """The router as kernels take it."""
    return structs.Router(
        ROUTER_KINDS.index(router.kind),
        router.num_experts,
        router.top_k,
        router.renormalize,
        router.scale,
        router.num_groups,
        router.top_groups,
        GROUP_SCORES.index(router.group_score),
        router.jitter,
    )
