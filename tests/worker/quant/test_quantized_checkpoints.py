"""Whole checkpoints in compressed-tensors, FP8 and Model Optimizer formats.

A model has the bits of the same model with the dequantized matrices, and the logits that
transformers computes with these.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.architectures.variant import token_sequences
from support.architectures.variants import VARIANTS
from support.models import load_step_model
from support.paged import PagedRunner
from taco_worker.models.config import load_hf_config
from taco_worker.models.weight_checks import check_weight_files
from taco_worker.quant.formats import fp8

Packed = tuple[dict[str, Tensor], Tensor]
SIZES: dict[str, dict[str, Any]] = {
    "llama-2-like": {"hidden_size": 192, "intermediate_size": 160},
    "qwen3-like": {"hidden_size": 96, "intermediate_size": 64, "head_dim": 32},
    "qwen3-moe-like": {"hidden_size": 96, "moe_intermediate_size": 64, "head_dim": 32},
    "granite-moe-like": {"hidden_size": 192, "intermediate_size": 96},
    "deepseek-v3-like": {"hidden_size": 192, "moe_intermediate_size": 160},
    "minimax-m2-like": {"hidden_size": 192, "intermediate_size": 160, "head_dim": 32},
}
LINEAR = re.compile(r"model\.layers\.[01]\..*(_proj|_proj_with_mqa|put_linear|w[123])\.weight$")


def by_compressed_tensors(weights: dict[str, Any], format_: str) -> Callable[[Tensor], Packed]:
    def pack(matrix: Tensor) -> Packed:
        scheme = QuantizationScheme(targets=["Linear"], weights=weights)
        args = scheme.weights
        assert args is not None
        n, k = matrix.shape
        group = args.group_size if (args.group_size or -1) > 0 else k
        grouped = matrix.view(n, -1, group)
        largest = {4: 6.0, 6: 7.5}.get(args.num_bits, 448.0)
        if args.type == "int":
            largest = float((1 << (args.num_bits - 1)) - 1) or 1.0
        scale = (grouped.abs().amax(-1) / largest).bfloat16().float()  # as writers round them
        state = {}
        if weights.get("scale_dtype"):
            scale = scale.log2().ceil().exp2()
        if args.strategy == "tensor_group":
            whole = 448 / scale.max()
            scale = (scale * whole).to(torch.float8_e4m3fn).float()
            state["weight_global_scale"] = whole.reshape(1)
        if not args.symmetric:
            state["weight_zero_point"] = torch.full(scale.shape, -1, dtype=torch.int8)
        compressor = BaseCompressor.get_value_from_registry(format_)
        stored = compressor.compress({"weight": matrix, "weight_scale": scale, **state}, scheme)
        values = compressor.decompress(stored, scheme)["weight"].detach().float()
        return {f".{name}": tensor for name, tensor in stored.items()}, values

    return pack


def by_fp8(block: tuple[int, int] | None, suffix: str) -> Callable[[Tensor], Packed]:
    def pack(matrix: Tensor) -> Packed:
        n, k = matrix.shape
        rows, columns = block or (n, k)
        padded = torch.zeros(-(-n // rows) * rows, -(-k // columns) * columns)
        padded[:n, :k] = matrix
        tiles = padded.unflatten(0, (-1, rows)).unflatten(2, (-1, columns))
        scale = tiles.abs().amax((1, 3)) / 448
        factor = scale.repeat_interleave(rows, 0)[:n].repeat_interleave(columns, 1)[:, :k]
        codes = (matrix / factor).to(torch.float8_e4m3fn)
        stored = scale if block else scale.reshape(())
        return {".weight": codes, suffix: stored}, codes.float() * factor

    return pack


def by_two_levels(matrix: Tensor) -> Packed:
    """compressed-tensors' NVFP4, with values in float32."""
    tensors, _ = by_compressed_tensors(NVFP4, "nvfp4-pack-quantized")(matrix)
    numbers = fp4_numbers(tensors[".weight_packed"])
    scales = tensors[".weight_scale"].float() / tensors[".weight_global_scale"].reshape(())
    return tensors, numbers * scales.repeat_interleave(16, 1)


def by_nvfp4(matrix: Tensor) -> Packed:
    tensors, _ = by_compressed_tensors(NVFP4, "nvfp4-pack-quantized")(matrix)
    scale, whole = tensors[".weight_scale"], 1 / tensors[".weight_global_scale"].reshape(())
    packed = tensors[".weight_packed"]
    values = fp4_numbers(packed) * (scale.float() * whole).repeat_interleave(16, 1)
    return {".weight": packed, ".weight_scale": scale, ".weight_scale_2": whole}, values


def fp4_numbers(packed: Tensor) -> Tensor:
    positive = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(1).int()
    return torch.where(codes > 7, -positive[codes & 7], positive[codes & 7])


def settings_of(weights: dict[str, Any], format_: str, **group: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, **group}}
    return {
        "quant_method": "compressed-tensors",
        "config_groups": groups,
        "format": format_,
        "ignore": ["lm_head", "re:.*mlp.gate$"],
        "quantization_status": "compressed",
        "sparsity_config": {},
    }


NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
INT4 = {"num_bits": 4, "type": "int", "group_size": 32, "strategy": "group", "symmetric": True}
INT3 = {**INT4, "num_bits": 3, "symmetric": False}
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
E4M3 = {"num_bits": 8, "type": "float", "strategy": "channel"}
MX = {"type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
DYNAMIC = {"num_bits": 8, "dynamic": True, "strategy": "token"}
FORMATS: dict[str, tuple[str, Callable[[Tensor], Packed], dict[str, Any]]] = {}
for name_, model_, weights_, group_ in (
    ("pack-quantized", "llama-2-like", INT4, {}),
    ("pack-quantized", "qwen3-like", INT3, {}),
    ("pack-quantized", "qwen3-moe-like", INT4, {}),
    ("pack-quantized", "granite-moe-like", INT3, {}),
    ("int-quantized", "llama-2-like", INT8, {"input_activations": DYNAMIC}),
    ("float-quantized", "qwen3-like", E4M3, {"input_activations": DYNAMIC}),
    ("naive-quantized", "llama-2-like", INT8, {}),
    ("mxfp4-pack-quantized", "qwen3-like", {**MX, "num_bits": 4}, {}),
    ("mxfp6-pack-quantized", "qwen3-like", {**MX, "num_bits": 6}, {}),
    ("mxfp8-quantized", "llama-2-like", {**MX, "num_bits": 8}, {}),
):
    FORMATS[f"{name_} {model_}"] = (
        model_,
        by_compressed_tensors(weights_, name_),
        settings_of(weights_, name_, **group_),
    )
FORMATS["nvfp4-pack-quantized"] = (
    "qwen3-moe-like",
    by_two_levels,
    settings_of(NVFP4, "nvfp4-pack-quantized"),
)
_EVERY = settings_of(INT8, "naive-quantized")
_EVERY["config_groups"]["group_0"]["targets"].append("Embedding")
FORMATS["head and embeddings"] = (
    "llama-2-like",
    by_compressed_tensors(INT8, "naive-quantized"),
    {**_EVERY, "ignore": []},
)
_BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
_STATIC = {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}
FORMATS |= {
    "fp8 blocks": ("deepseek-v3-like", by_fp8((128, 128), ".weight_scale_inv"), _BLOCKS),
    "fp8 blocks of experts": (
        "qwen3-moe-like",
        by_fp8((128, 128), ".weight_scale_inv"),
        {**_BLOCKS, "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"]},
    ),
    "fp8 blocks of MiniMax-M2": (
        "minimax-m2-like",
        by_fp8((128, 128), ".weight_scale_inv"),
        {
            **_BLOCKS,
            "activation_scheme": "dynamic",
            "fmt": "float8_e4m3fn",
            "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"],
        },
    ),
    "fp8 tensors": ("llama-2-like", by_fp8(None, ".weight_scale"), _STATIC),
    "fbgemm_fp8": (
        "llama-2-like",
        by_fp8((1, 10_000), ".weight_scale"),
        {"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]},
    ),
    "modelopt": (
        "qwen3-like",
        by_fp8(None, ".weight_scale"),
        {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]},
    ),
    "modelopt_fp4": (
        "qwen3-moe-like",
        by_nvfp4,
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "*.mlp.gate"]},
    ),
}


def pack_experts(matrices: Tensor, pack: Callable[[Tensor], Packed]) -> Packed:
    """A stack of matrices [num_experts, n, k]."""
    parts, values = zip(*map(pack, matrices), strict=True)
    stacked = {suffix: torch.stack([part[suffix] for part in parts]) for suffix in parts[0]}
    stacked[".weight_shape"] = torch.tensor(matrices.shape)
    return stacked, torch.stack(values)


def write_pair(folder: Path, name: str) -> tuple[Path, Path]:
    """A quantized checkpoint, and one with the dequantized matrices in float32."""
    model, pack, settings = FORMATS[name]
    dense = VARIANTS[model].make(folder / "dense", **SIZES[model])
    quantized = Path(shutil.copytree(dense, folder / "quantized"))
    tensors = load_file(dense / "model.safetensors")
    values, stored = dict(tensors), dict(tensors)
    others = ("lm_head.weight", "model.embed_tokens.weight") if settings.get("ignore") == [] else ()
    for one in [*filter(LINEAR.match, tensors), *others]:
        del stored[one]
        matrix = tensors[one]
        parts, values[one] = pack(matrix) if matrix.ndim == 2 else pack_experts(matrix, pack)
        module = one.removesuffix(".weight")
        stored |= {module + suffix: part.contiguous() for suffix, part in parts.items()}
        stored[f"{module}.input_scale"] = torch.ones(1)
    stored = {key: tensor.clone() for key, tensor in stored.items()}
    config = json.loads((quantized / "config.json").read_text())
    config["quantization_config"] = settings
    (quantized / "config.json").write_text(json.dumps(config))
    save_file(stored, quantized / "model.safetensors", {"format": "pt"})
    save_file(values, dense / "model.safetensors", {"format": "pt"})
    return quantized, dense


@pytest.mark.parametrize("name", FORMATS)
def test_a_model_has_the_bits_of_its_dequantized_matrices(tmp_path: Path, name: str) -> None:
    quantized, dense = write_pair(tmp_path, name)
    (ids,) = token_sequences((40,))
    check_weight_files(load_hf_config(quantized))
    actual, same = (
        PagedRunner(load_step_model(path, "kernels")).step({"a": ids})["a"]
        for path in (quantized, dense)
    )
    assert torch.equal(actual, same)
    (expected,) = VARIANTS[FORMATS[name][0]].reference(dense)([ids])
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)
    assert torch.equal(actual.argmax(-1), expected.argmax(-1))


@pytest.mark.parametrize("name", ["nvfp4-pack-quantized", "modelopt_fp4"])
def test_both_forms_of_nvfp4_run_from_codes(tmp_path: Path, name: str) -> None:
    quantized, dense = write_pair(tmp_path, name)
    (ids,) = token_sequences((40,))
    models = [load_step_model(path, "kernels", dtype="bfloat16") for path in (quantized, dense)]
    actual, same = (PagedRunner(model).step({"a": ids})["a"] for model in models)
    assert torch.equal(actual, same)
    assert "table16" in models[0].description
    assert "table16" not in models[1].description
    assert models[0].weight_bytes < 0.6 * models[1].weight_bytes


@pytest.mark.parametrize(
    "name",
    [
        "fp8 blocks",
        "fp8 blocks of MiniMax-M2",
        "pack-quantized qwen3-moe-like",
        "head and embeddings",
    ],
)
def test_torch_runs_the_same_checkpoints(tmp_path: Path, name: str) -> None:
    quantized, dense = write_pair(tmp_path, name)
    (ids,) = token_sequences((40,))
    actual = PagedRunner(load_step_model(quantized, "torch")).step({"a": ids})["a"]
    (expected,) = VARIANTS[FORMATS[name][0]].reference(dense)([ids])
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("model", ["qwen3-like", "qwen3-moe-like"])
def test_fp8_is_made_at_load(tmp_path: Path, model: str) -> None:
    dense = VARIANTS[model].make(tmp_path / "dense", dtype=torch.bfloat16, **SIZES[model])
    (ids,) = token_sequences((40,))
    runner = PagedRunner(load_step_model(dense, "kernels", quantization="fp8"))
    actual = runner.step({"a": ids})["a"]
    tensors = load_file(dense / "model.safetensors")
    for name in filter(LINEAR.match, tensors):
        tensors[name] = fp8.online().quantize(tensors[name]).values()
    save_file(tensors, dense / "model.safetensors", {"format": "pt"})
    (expected,) = VARIANTS[model].reference(dense)([ids])
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)


def test_settings_of_model_optimizer_in_a_file_beside(tmp_path: Path) -> None:
    quantized, _ = write_pair(tmp_path, "modelopt")
    config = json.loads((quantized / "config.json").read_text())
    del config["quantization_config"]
    (quantized / "config.json").write_text(json.dumps(config))
    beside = {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    (quantized / "hf_quant_config.json").write_text(json.dumps({"quantization": beside}))
    loaded = load_hf_config(quantized)
    assert loaded.quantization is not None
    assert loaded.quantization.method == "modelopt"
    check_weight_files(loaded)


@pytest.mark.parametrize("wanted", ["modelopt", "modelopt_fp4"])
def test_both_names_of_nvfp4(tmp_path: Path, wanted: str) -> None:
    quantized, _ = write_pair(tmp_path, "modelopt_fp4")
    loaded = load_hf_config(quantized, quantization=wanted)
    assert loaded.quantization is not None
    assert loaded.quantization.method == "modelopt_fp4"


def test_a_method_that_contradicts_the_checkpoint(tmp_path: Path) -> None:
    quantized, _ = write_pair(tmp_path, "modelopt")
    with pytest.raises(ValueError, match=r"is quantized \(modelopt\), which is not 'modelopt_fp4'"):
        load_hf_config(quantized, quantization="modelopt_fp4")


@pytest.mark.parametrize(
    ("name", "suffix", "replacement", "message"),
    [
        ("fp8 tensors", ".weight_scale", None, "missing tensors: {}"),
        ("fp8 tensors", ".weight_scale", torch.ones(3), r"wrong shapes: {} \(is \[3\], should be"),
        ("fp8 blocks of experts", ".weight_scale_inv", None, "missing tensors: {}"),
        ("modelopt_fp4", ".weight_scale_2", None, "missing tensors: {}"),
        ("modelopt_fp4", ".weight_scale", torch.ones(4, 4), r"wrong types: {} \(is F32, should"),
        ("pack-quantized qwen3-like", ".weight_zero_point", None, "missing tensors: {}"),
        (
            "pack-quantized qwen3-like",
            ".weight_packed",
            torch.zeros(2, 9, dtype=torch.int32),
            r"wrong shapes: {} \(is \[2, 9\], should be",
        ),
    ],
)
def test_missing_and_misshapen_tensors_are_named_from_headers(
    tmp_path: Path, name: str, suffix: str, replacement: Tensor | None, message: str
) -> None:
    quantized, _ = write_pair(tmp_path, name)
    tensors = load_file(quantized / "model.safetensors")
    changed = "model.layers.1.self_attn.o_proj" + suffix
    del tensors[changed]
    if replacement is not None:
        tensors[changed] = replacement
    save_file(tensors, quantized / "model.safetensors")
    with pytest.raises(ValueError, match=message.format(re.escape(changed)) + r"[^\n]*\Z"):
        check_weight_files(load_hf_config(quantized))


def test_invalid_values_are_named_at_load(tmp_path: Path) -> None:
    quantized, _ = write_pair(tmp_path, "fp8 tensors")
    tensors = load_file(quantized / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight_scale"].fill_(float("nan"))
    save_file(tensors, quantized / "model.safetensors")
    with pytest.raises(
        ValueError, match=r"model\.layers\.1\.mlp\.up_proj: weight_scale has NaNs[^\n]*\Z"
    ):
        load_step_model(quantized, "kernels")
