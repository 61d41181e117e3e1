"""The routers of a mixture of experts against their reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support.routers import ROUTERS, bias_of, router_name, tied_logits
from taco_kernels.reference import routing as reference
from taco_kernels.router import Router
from taco_kernels.triton.experts.route import route


def route_on(
    device: torch.device, logits: Tensor, router: Router, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    ids, weights = route(logits.to(device), router, None if bias is None else bias.to(device))
    return ids.cpu(), weights.cpu()


@pytest.mark.parametrize("router", ROUTERS, ids=router_name)
def test_agrees_with_the_reference(device: torch.device, router: Router) -> None:
    logits, bias = tied_logits(router, 10), bias_of(router)
    wanted_ids, wanted = reference.route(logits, router, bias)

    ids, weights = route_on(device, logits, router, bias)

    assert torch.equal(ids, wanted_ids)
    torch.testing.assert_close(weights, wanted, atol=1e-7, rtol=4e-6)


@pytest.mark.parametrize("spoilt", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("router", ROUTERS[::2], ids=router_name)
def test_rows_that_are_not_finite_choose_experts_as_the_reference(
    device: torch.device, router: Router, spoilt: float
) -> None:
    logits, bias = tied_logits(router, 3), bias_of(router)
    logits[1, router.num_experts // 2] = spoilt
    logits[2] = spoilt
    wanted, _ = reference.route(logits, router, bias)

    ids, _ = route_on(device, logits, router, bias)

    assert torch.equal(ids, wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_logits_are_widened(device: torch.device, dtype: torch.dtype) -> None:
    router = ROUTERS[0]
    wide = torch.randn(4, 70).to(dtype)
    wanted_ids, wanted = reference.route(wide[:, :64], router)

    ids, weights = route_on(device, wide[:, :64], router, None)

    assert torch.equal(ids, wanted_ids)
    torch.testing.assert_close(weights, wanted, atol=1e-7, rtol=4e-6)


def test_no_rows_need_no_launch(device: torch.device) -> None:
    ids, weights = route_on(device, torch.empty(0, 64), ROUTERS[0], None)
    assert ids.shape == weights.shape == (0, 8)


def test_error_names_the_mismatch() -> None:
    router = Router("sigmoid", 8, 2)
    for logits in (torch.zeros(2, 9), torch.zeros(8, 2).T):
        with pytest.raises(ValueError, match=r"logits must be \[rows, 8\]"):
            route(logits, router)
    with pytest.raises(ValueError, match=r"bias must be contiguous float32 \[8\]"):
        route(torch.zeros(2, 8), router, torch.zeros(7))
    with pytest.raises(ValueError, match="softmax_topk router cannot use a bias"):
        route(torch.zeros(2, 8), Router("softmax_topk", 8, 2), torch.zeros(8))
