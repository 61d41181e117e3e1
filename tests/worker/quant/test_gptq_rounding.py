"""The tests' GPTQ: less error in a layer's outputs than rounding to the nearest codes has."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers

from support.checkpoints import make_checkpoint
from support.packing.checkpoints import rounded
from support.packing.gptq_rounding import gptq_rounded, round_model


def test_outputs_have_less_error_than_with_nearest_codes() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(32, 64, generator=generator)
    mixed = torch.randn(64, 64, generator=generator)
    inputs = torch.randn(512, 64, generator=generator) @ mixed  # correlated, as in models
    expected = inputs @ weight.T

    def error(values: torch.Tensor) -> float:
        return float((inputs @ values.T - expected).square().mean())

    found = gptq_rounded(weight, inputs.T @ inputs, 4, 32)
    assert error(found.values) < 0.5 * error(rounded(weight, 4, 32).values)


def test_a_model_gets_the_values_of_its_codes(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model")
    model = transformers.LlamaForCausalLM.from_pretrained(path).eval()
    texts = torch.randint(10, 300, (2, 32), generator=torch.Generator().manual_seed(0))
    codes = round_model(model, texts, 4, 32)
    assert len(codes) == 14
    for name, integers in codes.items():
        assert torch.equal(model.get_submodule(name).weight, integers.values)
