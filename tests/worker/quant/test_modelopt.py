"""Model Optimizer: matrices as its exporter packs them, and its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from support.quantized import matrix_of
from taco_worker.quant.formats.modelopt import ModelOptCheckpoint, read

NO_FILES = Path("/none")
MODULE = "model.layers.0.self_attn.q_proj"
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def settings(algorithm: str, **others: Any) -> dict[str, Any]:
    return {"quantization": {"quant_algo": algorithm, "kv_cache_quant_algo": "FP8", **others}}


def checkpoint(algorithm: str, folder: Path = NO_FILES, **others: Any) -> ModelOptCheckpoint:
    return read(settings(algorithm, **others), folder)


def floats(n: int, k: int, seed: int) -> Tensor:
    numbers = torch.randn(n, k, generator=torch.Generator().manual_seed(seed)) * 20
    return numbers.clamp(-448, 448).to(torch.float8_e4m3fn)


@given(n=st.integers(1, 5), groups=st.integers(1, 4), seed=st.integers(0, 99))
def test_nvfp4(n: int, groups: int, seed: int) -> None:
    """The even column is in a byte's low bits; scales are multiplied in float32 first."""
    k, generator = 16 * groups, torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (n, k), generator=generator)
    numbers = torch.tensor([*E2M1, *(-one for one in E2M1)])[codes]
    packed = (codes[:, ::2] + 16 * codes[:, 1::2]).to(torch.uint8)
    scales = (torch.rand(n, groups, generator=generator) * 448).to(torch.float8_e4m3fn)
    whole = torch.rand((), generator=generator) / 1000
    format_ = checkpoint("NVFP4").format_of(MODULE, n, k)
    stored = {".weight": packed, ".weight_scale": scales, ".weight_scale_2": whole}
    expected = numbers * (scales.float() * whole).repeat_interleave(16, 1)
    assert torch.equal(matrix_of(format_, stored), expected)
    assert format_ is not None
    kept = format_.codes(stored)
    assert kept.steps is not None  # a byte a scale, as stored
    assert torch.equal(kept.steps.scales(), kept.scales)
    assert torch.equal(kept.steps.steps.float(), scales.float())


@pytest.mark.parametrize(
    ("algorithm", "shape", "rows", "columns"),
    [
        ("FP8", (), 200, 160),
        ("FP8", (1,), 200, 160),
        ("FP8_PER_CHANNEL_PER_TOKEN", (200,), 1, 160),
        ("FP8_PER_CHANNEL_PER_TOKEN", (200, 1), 1, 160),
        ("fp8_pb_wo", (2, 1, 2, 1), 128, 128),
        ("FP8_PB_WO", (2, 2), 128, 128),
        ("MXFP8", (200, 5), 1, 32),
    ],
)
def test_fp8(
    tmp_path: Path, algorithm: str, shape: tuple[int, ...], rows: int, columns: int
) -> None:
    weight = floats(200, 160, 1)
    scales = torch.rand(shape, generator=torch.Generator().manual_seed(1)) + 0.5
    factors = scales
    if algorithm == "MXFP8":
        scales = (scales * 20 + 110).to(torch.uint8)
        factors = torch.tensor([2.0 ** (int(one) - 127) for one in scales.flatten()])
    stored = {f"{MODULE}.weight": weight, f"{MODULE}.weight_scale": scales}
    save_file(stored, tmp_path / "model.safetensors")
    format_ = checkpoint(algorithm, tmp_path).format_of(MODULE, 200, 160)
    actual = matrix_of(format_, {".weight": weight, ".weight_scale": scales})
    grid = factors.reshape(-(-200 // rows), -(-160 // columns))
    factor = grid.repeat_interleave(rows, 0)[:200].repeat_interleave(columns, 1)[:, :160]
    assert torch.equal(actual, weight.float() * factor)


def test_excluded_modules_and_wildcards() -> None:
    excluded = ["lm_head", "model.layers.1*", "*.mlp.gate", "language_model.model.layers.2.mlp"]
    quantization = checkpoint("NVFP4", exclude_modules=excluded)

    def is_quantized(module: str) -> bool:
        return quantization.format_of(module, 16, 16) is not None

    assert not is_quantized("lm_head")
    assert not is_quantized("model.embed_tokens")
    assert not is_quantized("model.layers.1.mlp.up_proj")
    assert not is_quantized("model.layers.0.mlp.gate")
    assert not is_quantized("model.layers.2.mlp.up_proj")
    assert is_quantized("model.layers.2.self_attn.q_proj")
    assert is_quantized("model.layers.0.mlp.gate_proj")


def test_mixed_precision(tmp_path: Path) -> None:
    layers = {
        "model.layers.0.mlp": {"quant_algo": "NVFP4", "group_size": 16},
        "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
    }
    tensors = {"model.layers.3.mlp.up_proj.weight": floats(16, 16, 0)}
    save_file(tensors, tmp_path / "model.safetensors")
    quantization = checkpoint("MIXED_PRECISION", tmp_path, quantized_layers=layers)
    assert quantization.method == "modelopt_fp4"

    def dtypes(module: str) -> tuple[str, ...] | None:
        format_ = quantization.format_of(module, 16, 16)
        return None if format_ is None else format_.tensors[".weight"].dtypes

    assert dtypes("model.layers.0.mlp.experts.1.up_proj") == ("U8",)
    assert dtypes("model.layers.0.self_attn.q_proj") == ("F8_E4M3",)
    assert dtypes("model.layers.0.self_attn.o_proj") is None
    with pytest.raises(ValueError, match=r"up_proj\.weight is F8_E4M3, not in quantized_layers"):
        dtypes("model.layers.3.mlp.up_proj")


def test_settings_in_config_json() -> None:
    config = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}
    quantization = read(config, NO_FILES)
    assert quantization.method == "modelopt"
    assert quantization.format_of("lm_head", 16, 16) is None
    assert quantization.format_of(MODULE, 16, 16) is not None
    assert quantization.is_extra(f"{MODULE}.input_scale")
    assert quantization.is_extra("model.layers.0.self_attn.k_proj.k_scale")
    assert not quantization.is_extra(f"{MODULE}.weight_scale_2")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (settings("INT4_AWQ"), "quant_algo 'INT4_AWQ' is not supported; supported: FP8, FP8_PER"),
        ({"quant_method": "modelopt"}, "quant_algo None is not supported"),
        ({"quantization": "FP8"}, "quantization must be an object, not 'FP8'"),
        (settings("FP8", exclude_modules="lm_head"), "exclude_modules must be a list of strings"),
        (settings("NVFP4", group_size=15), "group_size must be an even positive integer, not 15"),
        (settings("MIXED_PRECISION"), "MIXED_PRECISION needs quantized_layers by name"),
        (settings("MIXED_PRECISION", quantized_layers={"a": 1}), "a must be an object, not 1"),
        (
            settings("MIXED_PRECISION", quantized_layers={"a": {"quant_algo": "W8A8"}}),
            "quant_algo 'W8A8' is not supported",
        ),
    ],
)
def test_invalid_settings_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"{message}[^\n]*\Z"):
        read(config, NO_FILES)


@pytest.mark.parametrize("algorithm", ["NVFP4", "MXFP8"])
def test_groups_that_do_not_divide_the_columns(algorithm: str) -> None:
    with pytest.raises(ValueError, match=r"q_proj: group.* not divide 40 columns"):
        checkpoint(algorithm).format_of(MODULE, 16, 40)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e36])
def test_invalid_scales_are_refused(number: float) -> None:
    format_ = checkpoint("NVFP4").format_of(MODULE, 2, 16)
    assert format_ is not None
    stored = {
        ".weight": torch.zeros(2, 8, dtype=torch.uint8),
        ".weight_scale": torch.ones(2, 1).to(torch.float8_e4m3fn),
        ".weight_scale_2": torch.tensor(number),
    }
    with pytest.raises(ValueError, match=r"weight_scale(_2| with weight_scale_2) has"):
        format_.dequantize(stored)
