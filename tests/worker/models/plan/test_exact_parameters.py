"""No method at load quantizes factors of routers, gates of recurrences and convolutions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.architectures.variants import VARIANTS
from taco_worker.backends.cpu.matrix_types import matrix_types
from taco_worker.backends.torch.coded_parameters import coded_parameters
from taco_worker.models.code_segments import code_segments
from taco_worker.models.config import ModelConfig, load_hf_config
from taco_worker.models.plan.exact_parameters import exact_parameters
from taco_worker.quant.registry import read_online_quantization


def model_of(name: str, path: Path) -> ModelConfig:
    (path / "config.json").write_text(json.dumps(VARIANTS[name].config))
    return load_hf_config(path)


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("llama-2-like", set()),
        ("mixtral-8x7b-like", {"moe.router.weight"}),
        ("qwen3.5-like", {"delta.gates.weight", "delta.conv.weight"}),
        ("bamba-like", {"mamba.steps.weight", "mamba.conv.weight"}),
        ("falcon-h1-like", {"mamba.steps.weight", "mamba.conv.weight"}),
        ("lfm2-like", {"conv.conv.weight"}),
        (
            "kimi-linear-like",
            {"delta.gates.weight", "delta.conv.weight", "moe.router.weight"}
            | {"delta.decay_down.weight", "delta.decay_up.weight"},
        ),
    ],
)
def test_exact_parameters_of_an_architecture(
    variant: str, expected: set[str], tmp_path: Path
) -> None:
    model = model_of(variant, tmp_path)
    plan, exact = model.plan, exact_parameters(model.plan)
    assert {name.split(".", 2)[2] for name in exact} == expected
    types = matrix_types(plan, "bf16", "int8")
    assert {types[name] for name in exact & types.keys()} <= {"bf16"}
    assert exact.isdisjoint(coded_parameters(model, "int8"))
    fp8 = read_online_quantization("fp8")
    assert fp8 is not None
    found = code_segments(plan, None, fp8)
    assert found
    assert exact.isdisjoint(found)
