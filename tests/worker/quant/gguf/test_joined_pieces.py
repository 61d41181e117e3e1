"""Matrices that GGUF files have in several tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize

from taco_worker.quant.gguf.checkpoint import open_checkpoint
from taco_worker.quant.gguf.tensors import iterate_gguf

_COLUMNS = 64


def _write(file: Path, architecture: str, tensors: dict[str, tuple[np.ndarray, str]]) -> Path:
    """Each tensor as numbers and the type that it gets."""
    writer = GGUFWriter(file, architecture)
    writer.add_head_count(2)
    writer.add_block_count(1)
    for name, (numbers, kind) in tensors.items():
        data = quantize(numbers, GGMLQuantizationType[kind])
        raw = None if kind in ("F32", "F16") else GGMLQuantizationType[kind]
        writer.add_tensor(name, data, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _values(numbers: np.ndarray, kind: str) -> np.ndarray:
    quantization = GGMLQuantizationType[kind]
    return dequantize(quantize(numbers, quantization), quantization)


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape, dtype=np.float32)


def _read(file: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor, _ in iterate_gguf(file)}


@pytest.mark.parametrize("value_kind", ["Q8_0", "F32", "Q4_0"])
def test_rows_of_one_matrix(value_kind: str, tmp_path: Path) -> None:
    """They stay codes where their types are the same."""
    parts = {
        f"blk.0.attn_{x}.weight": (_random(8, _COLUMNS) + i, "Q4_0") for i, x in enumerate("qkv")
    }
    parts["blk.0.attn_v.weight"] = (_random(8, _COLUMNS), value_kind)
    file = _write(tmp_path / "m.gguf", "baichuan", parts)
    ((piece,),) = open_checkpoint(file).pieces.values()
    ((name, rows),) = _read(file).items()
    assert name == piece.name == "model.layers.0.self_attn.W_pack.weight"
    assert tuple(rows.shape) == piece.stored_shape
    order = [0, 2, 1, 3, 4, 6, 5, 7]  # of two heads with two pairs of neighbours
    if value_kind == "Q4_0":
        assert (piece.dtype, piece.block_type) != ("F32", None)
        raw = [quantize(one, GGMLQuantizationType.Q4_0) for one, _ in parts.values()]
        wanted = np.concatenate([raw[0][order], raw[1][order], raw[2]])
    else:
        assert (piece.dtype, piece.block_type) == ("F32", None)
        query, key, value = (_values(one, kind) for one, kind in parts.values())
        wanted = np.concatenate([query[order], key[order], value])
    torch.testing.assert_close(rows, torch.from_numpy(wanted), atol=0, rtol=0)


@pytest.mark.parametrize("shape", [(8,), (1, 8)])
def test_vectors_with_an_axis_of_one(shape: tuple[int, ...], tmp_path: Path) -> None:
    """ERNIE's biases of routers; converters may drop the axis."""
    numbers = _random(*shape)
    file = _write(tmp_path / "m.gguf", "ernie4_5-moe", {"blk.0.exp_probs_b.bias": (numbers, "F32")})
    ((name, tensor),) = _read(file).items()
    assert name == "model.layers.0.mlp.moe_statics.e_score_correction_bias"
    assert np.array_equal(tensor.numpy(), numbers.reshape(1, 8))


def test_latent_heads(tmp_path: Path) -> None:
    keys, values = _random(2, 32, _COLUMNS), _random(2, 6, 32)
    tensors = {"blk.0.attn_v_b.weight": (values, "F16"), "blk.0.attn_k_b.weight": (keys, "Q8_0")}
    file = _write(tmp_path / "m.gguf", "deepseek2", tensors)
    ((piece,),) = open_checkpoint(file).pieces.values()
    ((name, rows),) = _read(file).items()
    assert name == "model.layers.0.self_attn.kv_b_proj.weight"
    assert (tuple(rows.shape), piece.dtype) == (piece.stored_shape, "F32") == ((140, 32), "F32")
    stored = _values(keys, "Q8_0")
    for head in range(2):
        wanted = np.concatenate([stored[head].T, _values(values, "F16")[head]])
        assert np.array_equal(rows[70 * head : 70 * (head + 1)].numpy(), wanted)


@pytest.mark.parametrize(
    ("architecture", "shapes", "message"),
    [
        ("baichuan", {"attn_q": (8, 64), "attn_k": (8, 64)}, "and not the one named 'attn_v'"),
        ("baichuan", {"attn_q": (8, 64), "attn_k": (8, 64), "attn_v": (8, 32)}, "unlike columns"),
        ("deepseek2", {"attn_k_b": (2, 32, 64)}, "and not the one named 'attn_v_b'"),
        ("deepseek2", {"attn_k_b": (2, 32, 64), "attn_v_b": (2, 6, 64)}, "not parts of one"),
        ("deepseek2", {"attn_k_b": (2, 32, 64), "attn_v_b": (12, 32)}, "not parts of one"),
        ("deepseek2", {"attn_k_b": (64, 64), "attn_kv_b": (140, 64)}, "are both model.layers.0"),
        ("granitemoe", {"ffn_up_exps": (2, 6, 64), "ffn_up.1": (6, 64)}, "experts.1.up_proj"),
    ],
)
def test_parts_that_do_not_fit(
    architecture: str, shapes: dict[str, tuple[int, ...]], message: str, tmp_path: Path
) -> None:
    tensors = {f"blk.0.{name}.weight": (_random(*shape), "F32") for name, shape in shapes.items()}
    file = _write(tmp_path / "m.gguf", architecture, tensors)
    with pytest.raises(ValueError, match=message) as error:
        list(open_checkpoint(file))
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


def test_scales_that_are_not_finite(tmp_path: Path) -> None:
    tensors = {
        "blk.0.attn_k_b.weight": (_random(2, 32, _COLUMNS), "Q8_0"),
        "blk.0.attn_v_b.weight": (_random(2, 6, 32), "F32"),
    }
    file = _write(tmp_path / "m.gguf", "deepseek2", tensors)
    start = open_checkpoint(file).tensors["blk.0.attn_k_b.weight"].start
    content = bytearray(file.read_bytes())
    content[start : start + 2] = b"\x00\x7c"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"m\.gguf: tensor 'blk\.0\.attn_k_b\.weight': its scales"):
        _read(file)
