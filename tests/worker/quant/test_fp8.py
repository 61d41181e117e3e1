"""FP8 checkpoints: transformers reads them too. Also FP8 made at load, and FBGEMM's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from support.quantized import matrix_of
from taco_worker.quant.encodings.scaled_matrix import ScaledMatrix
from taco_worker.quant.formats import fbgemm_fp8, fp8

NO_FILES = Path("/none")
BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
MODULE = "model.layers.0.self_attn.q_proj"


def floats(n: int, k: int, seed: int = 0) -> Tensor:
    """All e4m3 numbers but NaN."""
    bytes_ = torch.randint(0, 256, (n, k), generator=torch.Generator().manual_seed(seed))
    bytes_[(bytes_ & 0x7F) == 0x7F] = 0
    return bytes_.to(torch.uint8).view(torch.float8_e4m3fn)


def scales_of(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) + 0.01


def stored_in(path: Path, tensors: dict[str, Tensor]) -> Path:
    save_file(tensors, path / "model.safetensors")
    return path


@given(
    blocks=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    block=st.sampled_from([(128, 128), (16, 32), (1, 64)]),
    scale_dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float8_e8m0fnu, torch.uint8]),
)
def test_blocks_are_as_transformers_has_them(
    blocks: tuple[int, int], block: tuple[int, int], scale_dtype: torch.dtype
) -> None:
    n, k = blocks[0] * block[0], blocks[1] * block[1]
    scales = torch.rand(blocks, generator=torch.Generator().manual_seed(n * k)) + 0.01
    if scale_dtype == torch.uint8:
        scales = (scales * 20 + 110).to(torch.uint8)
    scales, weight = scales.to(scale_dtype), floats(n, k)
    quantization = fp8.read({"weight_block_size": list(block), "scale_fmt": "ue8m0"}, NO_FILES)
    format_ = quantization.format_of(MODULE, n, k)
    actual = matrix_of(format_, {".weight": weight, ".weight_scale_inv": scales})
    oracle = Fp8Dequantize(None)._dequantize_one(weight, scales, torch.float32)
    assert torch.equal(actual, oracle)


@pytest.mark.parametrize(("n", "k"), [(576, 200), (130, 128), (5, 5)])
def test_the_last_block_may_have_fewer_rows_and_columns(n: int, k: int) -> None:
    format_ = fp8.read(BLOCKS, NO_FILES).format_of(MODULE, n, k)
    scales, weight = scales_of(-(-n // 128), -(-k // 128)), floats(n, k)
    expected = (
        weight.float() * scales.repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
    )
    assert torch.equal(
        matrix_of(format_, {".weight": weight, ".weight_scale_inv": scales}), expected
    )


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (6,), (6, 1)])
@pytest.mark.parametrize("suffix", [".weight_scale", ".weight_scale_inv"])
def test_scales_of_tensors_and_rows(tmp_path: Path, shape: tuple[int, ...], suffix: str) -> None:
    """The headers of the files tell the name and the shape."""
    weight, scales = floats(6, 40), scales_of(*shape)
    tensors = {MODULE + ".weight": weight, MODULE + suffix: scales}
    quantization = fp8.read({"activation_scheme": "static"}, stored_in(tmp_path, tensors))
    format_ = quantization.format_of(MODULE, 6, 40)
    actual = matrix_of(format_, {".weight": weight, suffix: scales})
    assert torch.equal(actual, weight.float() * scales.reshape(-1, 1))


def test_blocks_that_the_settings_do_not_mention(tmp_path: Path) -> None:
    weight, scales = floats(200, 300), scales_of(2, 3)
    tensors = {MODULE + ".weight": weight, MODULE + ".weight_scale_inv": scales}
    format_ = fp8.read({}, stored_in(tmp_path, tensors)).format_of(MODULE, 200, 300)
    assert format_ is not None
    assert (format_.rows, format_.group) == (128, 128)


def test_what_the_files_hold_decides_what_is_quantized(tmp_path: Path) -> None:
    """Configurations of DeepSeek V3 do not list the LM head and the routers."""
    layer = "model.language_model.layers.0.mlp"
    tensors = {
        f"{layer}.gate.weight": torch.zeros(8, 8),
        f"{layer}.up_proj.weight": floats(8, 8),
        f"{layer}.experts.gate_up_proj": floats(16, 8).view(2, 8, 8),
        f"{layer}.experts.gate_up_proj_scale_inv": torch.ones(2, 1, 1),
        "lm_head.weight": torch.zeros(8, 8, dtype=torch.bfloat16),
    }
    config = {**BLOCKS, "modules_to_not_convert": ["up_proj"]}
    quantization = fp8.read(config, stored_in(tmp_path, tensors))
    assert quantization.format_of("model.layers.0.mlp.gate", 8, 8) is None
    assert quantization.format_of("lm_head", 8, 8) is None
    assert quantization.format_of("model.layers.0.mlp.up_proj", 8, 8) is not None
    stacked = quantization.format_of("model.layers.0.mlp.experts.gate_up_proj", 8, 8)
    assert stacked is not None
    assert {suffix: one.shape for suffix, one in stacked.tensors.items()} == {
        "": (8, 8),
        "_scale_inv": (1, 1),
    }


@pytest.mark.parametrize("field", ["modules_to_not_convert", "ignored_layers"])
def test_excluded_modules_where_no_header_tells(field: str) -> None:
    names = ["lm_head", "model.layers.*.mlp.gate", "self_attn", "model.layers.1"]
    quantization = fp8.read({**BLOCKS, field: names}, NO_FILES)

    def is_quantized(module: str) -> bool:
        return quantization.format_of(module, 128, 128) is not None

    assert not is_quantized("lm_head")
    assert not is_quantized("model.embed_tokens")
    assert not is_quantized("model.layers.0.mlp.gate")
    assert is_quantized("model.layers.0.mlp.gate_proj")
    assert not is_quantized("model.layers.0.self_attn.q_proj")
    assert not is_quantized("model.layers.1.mlp.up_proj")
    assert is_quantized("model.layers.11.mlp.up_proj")


def test_scales_of_activations_and_of_the_kv_cache_are_not_needed() -> None:
    quantization = fp8.read(BLOCKS, NO_FILES)
    for name in ("input_scale", "activation_scale", "k_scale", "v_scale", "kv_scale"):
        assert quantization.is_extra(f"model.layers.0.self_attn.{name}")
    assert not quantization.is_extra("model.layers.0.self_attn.q_proj.weight_scale")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fmt": "e4m3fnuz"}, "fmt 'e4m3fnuz' is not supported; 'e4m3' is"),
        ({"fmt": "e5m2"}, "fmt 'e5m2' is not supported; 'e4m3' is"),
        ({"activation_scheme": "none"}, "activation_scheme must be dynamic or static, not 'none'"),
        ({"scale_fmt": "e5m2"}, "scale_fmt must be float or ue8m0, not 'e5m2'"),
        ({"expert_dtype": "fp4"}, "expert_dtype 'fp4' is not supported; 'fp8' is"),
        ({"weight_block_size": [128]}, r"must be two positive integers, not \[128\]"),
        ({"weight_block_size": [128, 0]}, r"must be two positive integers, not \[128, 0\]"),
        ({"weight_block_size": 128}, "must be two positive integers, not 128"),
        ({"ignored_layers": "lm_head"}, "ignored_layers must be a list of strings, not 'lm_head'"),
    ],
)
def test_invalid_configurations_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"{message}\Z"):
        fp8.read({**BLOCKS, **changes}, NO_FILES)


@pytest.mark.parametrize("byte", [0x7F, 0xFF])
def test_nan_weights_are_refused(byte: int) -> None:
    format_ = fp8.read(BLOCKS, NO_FILES).format_of(MODULE, 4, 4)
    assert isinstance(format_, ScaledMatrix)
    weight = floats(4, 4)
    weight.view(torch.uint8)[2, 3] = byte
    with pytest.raises(ValueError, match=r"\Aweight has NaNs\Z"):
        format_.codes({".weight": weight, ".weight_scale_inv": torch.ones(1, 1)})


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (torch.tensor([[float("nan")]]), "weight_scale_inv has NaNs or infinite numbers"),
        (torch.tensor([[float("-inf")]]), "weight_scale_inv has NaNs or infinite numbers"),
        (torch.tensor([[1e37]]), "weight_scale_inv has huge numbers"),
        (torch.tensor([[255]], dtype=torch.uint8), "weight_scale_inv has NaNs"),
    ],
)
def test_invalid_scales_are_refused(scale: Tensor, message: str) -> None:
    format_ = fp8.read(BLOCKS, NO_FILES).format_of(MODULE, 4, 4)
    assert isinstance(format_, ScaledMatrix)
    with pytest.raises(ValueError, match=rf"\A{message}\Z"):
        format_.dequantize({".weight": floats(4, 4), ".weight_scale_inv": scale})


def test_damaged_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(ValueError, match=r"model\.safetensors: not a safetensors file[^\n]*\Z"):
        fp8.read(BLOCKS, tmp_path)


def test_fbgemm_has_a_scale_for_each_row() -> None:
    config = {"activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]}
    quantization = fbgemm_fp8.read(config, NO_FILES)
    assert quantization.method == "fbgemm_fp8"
    assert quantization.format_of("lm_head", 6, 40) is None
    weight, scales = floats(6, 40), scales_of(6, 1)
    format_ = quantization.format_of(MODULE, 6, 40)
    actual = matrix_of(format_, {".weight": weight, ".weight_scale": scales})
    assert torch.equal(actual, weight.float() * scales)


@given(
    n=st.integers(1, 9),
    k=st.integers(1, 9),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    size=st.sampled_from([0.0, 1e-30, 1.0, 6e4]),
)
def test_online_matrices_are_near_the_numbers(
    n: int, k: int, dtype: torch.dtype, size: float
) -> None:
    rows = (torch.randn(n, k, generator=torch.Generator().manual_seed(n * k)) * size).to(dtype)
    rows = rows.nan_to_num()
    online = fp8.online()
    codes, layout = online.quantize(rows), online.layout_of(MODULE, n, k)
    assert layout is not None
    assert (codes.kind, codes.group, codes.shape) == (layout.kind, layout.group, (n, k))
    assert codes.scales.unique().numel() == 1
    largest = rows.float().abs().max()
    assert codes.values().abs().max() == pytest.approx(float(largest), rel=1e-6)
    error = (codes.values() - rows.float()).abs()
    # Half of the last of 3 bits of mantissa, or of the smallest number.
    assert bool((error <= rows.float().abs() / 16 + largest / 448 / 2**10 + 1e-44).all())


def test_online_leaves_heads_tables_and_routers() -> None:
    online = fp8.online()
    for module in ("lm_head", "model.embed_tokens", "model.layers.0.mlp.gate", "transformer.wte"):
        assert online.layout_of(module, 8, 8) is None
    assert online.layout_of("model.layers.0.mlp.experts.{expert}.gate_proj", 8, 8) is not None


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_online_refuses_numbers_that_are_not_finite(number: float) -> None:
    rows = torch.ones(2, 2)
    rows[1, 1] = number
    with pytest.raises(ValueError, match=r"\Athe matrix has NaNs or infinite numbers\Z"):
        fp8.online().quantize(rows)
