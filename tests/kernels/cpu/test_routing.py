"""The router of the CPU kernels against the reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.cpu_kernels import EMULATED, NATIVE, kernels_of
from support.routers import ROUTERS, bias_of, router_name, tied_logits
from taco_kernels.cpu.routing import route
from taco_kernels.library import CpuKernels
from taco_kernels.reference import routing as reference
from taco_kernels.router import Router


@pytest.mark.parametrize("router", ROUTERS, ids=router_name)
def test_agrees_with_the_reference(cpu_kernels: CpuKernels, router: Router) -> None:
    logits, bias = tied_logits(router, 60), bias_of(router)
    wanted_ids, wanted = reference.route(logits, router, bias)

    ids, weights = route(cpu_kernels, logits, router, bias)

    assert torch.equal(ids, wanted_ids)
    torch.testing.assert_close(weights, wanted, atol=1e-7, rtol=2e-6)


@pytest.mark.parametrize("router", ROUTERS, ids=router_name)
def test_bits_do_not_depend_on_neighbours_or_threads(
    cpu_kernels: CpuKernels, router: Router
) -> None:
    logits, bias = tied_logits(router, 30), bias_of(router)
    alone = [route(cpu_kernels, row[None], router, bias) for row in logits]

    for threads in (1, 3):
        ids, weights = route(kernels_of(cpu_kernels.isa, threads), logits, router, bias)
        assert torch.equal(ids, torch.cat([one for one, _ in alone]))
        assert torch.equal(weights, torch.cat([one for _, one in alone]))


@pytest.mark.parametrize("spoilt", [torch.nan, -torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("router", ROUTERS, ids=router_name)
def test_rows_that_are_not_finite_choose_experts_as_the_reference(
    router: Router, spoilt: float
) -> None:
    """Ids stay valid, so that no kernel reads another memory."""
    logits, bias = tied_logits(router, 12), bias_of(router)
    logits[3, router.num_experts // 2] = spoilt
    logits[5] = spoilt
    wanted, _ = reference.route(logits, router, bias)

    ids, _ = route(kernels_of(NATIVE[-1], 2), logits, router, bias)

    assert torch.equal(ids, wanted)


@pytest.mark.parametrize("isa", [NATIVE[0], *EMULATED[-1:]])
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(["softmax", "softmax_topk", "sigmoid"]),
    num_groups=st.integers(1, 5),
    group_size=st.integers(1, 40),
    num_rows=st.integers(0, 12),
    data=st.data(),
)
def test_any_router(
    isa: str, kind: str, num_groups: int, group_size: int, num_rows: int, data: st.DataObject
) -> None:
    top_groups = data.draw(st.integers(1, num_groups))
    router = Router(
        kind,  # type: ignore[arg-type]
        num_groups * group_size,
        data.draw(st.integers(1, min(64, top_groups * group_size))),
        renormalize=data.draw(st.booleans()),
        scale=1.5,
        num_groups=num_groups,
        top_groups=top_groups,
        group_score="sum_of_two" if kind == "sigmoid" else "max",
    )
    logits, bias = tied_logits(router, num_rows, seed=group_size), bias_of(router)
    wanted_ids, wanted = reference.route(logits, router, bias)

    ids, weights = route(kernels_of(isa, 2), logits, router, bias)

    assert torch.equal(ids, wanted_ids)
    torch.testing.assert_close(weights, wanted, atol=1e-7, rtol=4e-6)


def test_rows_may_be_columns_of_a_wider_buffer() -> None:
    router = ROUTERS[0]
    wide = torch.randn(9, 100)
    kernels = kernels_of("avx2", 2)

    ids, weights = route(kernels, wide[:, 30:94], router)

    wanted_ids, wanted = route(kernels, wide[:, 30:94].contiguous(), router)
    assert torch.equal(ids, wanted_ids)
    assert torch.equal(weights, wanted)


def test_refuses_other_logits_and_biases() -> None:
    kernels, router = kernels_of("avx2", 1), Router("sigmoid", 8, 2)

    for logits in (torch.zeros(2, 9), torch.zeros(2, 8).double(), torch.zeros(8, 2).T):
        with pytest.raises(ValueError, match=r"float32 \[rows, 8\] with contiguous rows"):
            route(kernels, logits, router)
    with pytest.raises(ValueError, match=r"bias must be contiguous float32 \[8\]"):
        route(kernels, torch.zeros(2, 8), router, torch.zeros(7))
    with pytest.raises(ValueError, match="softmax_topk router cannot use a bias"):
        route(kernels, torch.zeros(2, 8), Router("softmax_topk", 8, 2), torch.zeros(8))
