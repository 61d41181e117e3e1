"""experts_int8: rows of experts' matrices are rounded to 255 multiples of a scale."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taco_worker.quant.formats.experts_int8 import online


@settings(deadline=None, max_examples=40)
@given(
    n=st.integers(1, 9),
    k=st.integers(1, 200),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 2**31),
)
def test_numbers_are_rounded_to_the_nearest_code(
    n: int, k: int, dtype: torch.dtype, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, k, generator=generator).to(dtype)
    rows[0] = 0

    codes = online().quantize(rows)

    assert (codes.kind, codes.group) == ("int8", k)
    assert int(codes.codes.abs().max()) <= 127
    assert torch.equal(codes.scales[:, 0], rows.float().abs().amax(1) / 127)
    errors = (codes.values() - rows.float()).abs()
    assert bool((errors <= codes.scales * 0.5001).all())


def test_only_experts_are_rounded() -> None:
    layouts = {
        module: online().layout_of(module, 32, 64) is not None
        for module in (
            "model.layers.0.mlp.experts.{expert}.gate_proj",
            "model.layers.0.mlp.experts.gate_up_proj",
            "model.layers.0.block_sparse_moe.input_linear",
            "model.layers.0.mlp.shared_experts.gate_proj",
            "model.layers.0.mlp.gate",
            "model.layers.0.self_attn.q_proj",
            "lm_head",
        )
    }
    assert list(layouts.values()) == [True, True, True, False, False, False, False]


def test_numbers_that_are_not_finite_are_an_error() -> None:
    with pytest.raises(ValueError, match="numbers are not finite"):
        online().quantize(torch.full((2, 4), float("nan")))
