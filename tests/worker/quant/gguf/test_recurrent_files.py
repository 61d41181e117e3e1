"""Files of models with recurrent layers: what other files do not have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter

from support.architectures.variants import VARIANTS
from support.gguf_files.blocks import random_blocks
from support.gguf_files.convert import write_gguf
from support.mixed_batches import in_chunks, three_sequences
from support.models import load_step_model
from support.paged import PagedRunner
from taco_worker.quant.gguf.blocks.block_types import BLOCK_TYPES
from taco_worker.quant.gguf.blocks.matrix import SUFFIX, GgufMatrix
from taco_worker.quant.gguf.blocks.reordered_columns import ReorderedColumns
from taco_worker.quant.gguf.checkpoint import GgufCheckpoint, open_checkpoint
from taco_worker.quant.gguf.header import GgufHeader
from taco_worker.quant.gguf.model_directory import directory_files, model_directory
from taco_worker.quant.gguf.rows import TiledHeads
from taco_worker.quant.gguf.tensors import iterate_gguf

pytestmark = pytest.mark.kernels

_KINDS = {kind.name: kind for kind in BLOCK_TYPES.values()}
_REMOVED = object()


def _read(file: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor, _ in iterate_gguf(file)}


def _write(file: Path, architecture: str, tensors: dict[str, np.ndarray], **sizes: int) -> Path:
    writer = GGUFWriter(file, architecture)
    writer.add_head_count(2)
    writer.add_block_count(1)
    for name, size in sizes.items():
        writer.add_uint32(f"{architecture}.ssm.{name}", size)
    for name, numbers in tensors.items():
        writer.add_tensor(name, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _config(file: Path, **keys: Any) -> dict[str, Any]:
    """The config.json if keys had other values; "__" is a full stop."""
    (header,) = open_checkpoint(file).headers.values()
    changed = {name.replace("__", "."): value for name, value in keys.items()}
    metadata = {**header.metadata, **changed}
    metadata = {name: value for name, value in metadata.items() if value is not _REMOVED}
    files = directory_files(GgufCheckpoint({file: GgufHeader(metadata, header.tensors, "")}))
    config: dict[str, Any] = dict(files["config.json"])
    return config


def _assert_same_logits(
    name: str, source: Path, file: Path, cache: Path, serves: str = "kernels"
) -> None:
    sequences = three_sequences()
    model = load_step_model(model_directory(file, cache), serves)
    logits = in_chunks(PagedRunner(model, num_blocks=40), sequences)
    expected = VARIANTS[name].reference(source)(list(sequences.values()))
    for one, wanted in zip(sequences, expected, strict=True):
        torch.testing.assert_close(logits[one], wanted, atol=2e-4, rtol=0)


@pytest.mark.parametrize("serves", ["kernels", "torch"])
@pytest.mark.parametrize(
    ("kind", "num_heads", "value_dim"),
    [
        ("Q4_K", 4, 64),
        ("Q6_K", 4, 64),
        ("IQ4_XS", 4, 64),
        ("Q4_1", 4, 64),
        ("Q3_K", 32, 24),  # heads are no whole groups
        ("TQ1_0", 4, 64),  # groups are longer than heads
    ],
)
def test_blocks_across_heads(
    kind: str, num_heads: int, value_dim: int, serves: str, tmp_path: Path
) -> None:
    """Files of Qwen3.5 have value heads in another order, also as columns of blocks."""
    sizes: dict[str, Any] = {
        "hidden_size": 256,
        "intermediate_size": 256,
        "linear_num_value_heads": num_heads,
        "linear_value_head_dim": value_dim,
    }
    source = VARIANTS["qwen3.5-text-like"].make(tmp_path / "hf", **sizes)
    file = write_gguf(source, tmp_path / "m.gguf", kind)
    types = {name: one.type.name for name, one in open_checkpoint(file).tensors.items()}
    assert {types[f"blk.0.{one}.weight"] for one in ("ssm_out", "ssm_alpha", "attn_qkv")} == {kind}
    _assert_same_logits("qwen3.5-text-like", source, file, tmp_path / "cache", serves)


@pytest.mark.parametrize("serves", ["kernels", "torch"])
def test_mixed_types(serves: str, tmp_path: Path) -> None:
    """Modules that are one matrix of the model, as Q4_K_M and other mixtures store them."""
    sizes: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 256}
    source = VARIANTS["qwen3.5-text-like"].make(tmp_path / "hf", **sizes)
    kinds = {"in_proj_qkv": "Q5_K", "in_proj_a": "F32", "in_proj_b": "Q8_0", "v_proj": "Q6_K"}
    file = write_gguf(source, tmp_path / "m.gguf", "Q4_K", other_kinds=kinds)
    types = {name: one.type.name for name, one in open_checkpoint(file).tensors.items()}
    found = [types[f"blk.0.{one}.weight"] for one in ("attn_qkv", "ssm_alpha", "ssm_beta")]
    assert found == ["Q5_K", "F32", "Q8_0"]
    _assert_same_logits("qwen3.5-text-like", source, file, tmp_path / "cache", serves)


@pytest.mark.parametrize("name", sorted(_KINDS))
def test_codes_of_reordered_columns(name: str) -> None:
    """Codes have the same values as numbers, and the layout that was announced."""
    kind = _KINDS[name]
    order = TiledHeads(0, 2, 4, 128)
    matrix = ReorderedColumns(GgufMatrix(kind, 8, order.count), order)
    data = random_blocks(name, 8, order.count // kind.columns, seed=1)
    stored = {SUFFIX: torch.from_numpy(data)}
    in_file_order = matrix.matrix.dequantize(stored).reshape(8, 4, 2, 128)
    wanted = in_file_order.swapaxes(1, 2).reshape(8, -1)
    assert torch.equal(matrix.dequantize(stored), wanted)
    layout = matrix.layout
    if layout is None:
        assert kind.layout.group > order.size
        return
    codes = matrix.codes(stored)
    assert torch.equal(codes.values(), wanted)
    if codes.steps is not None:
        assert codes.steps.groups_per_unit == layout.groups_per_unit == 128 // layout.group
        assert torch.equal(codes.steps.scales(), codes.scales)
        minima = codes.steps.minima()
        assert (minima is None) is (codes.minima is None)
        if minima is not None and codes.minima is not None:
            assert torch.equal(minima, codes.minima)
    parts = [part.values() for _, part in matrix.codes_of_parts(stored)]
    assert torch.equal(torch.cat(parts), codes.values())


@pytest.mark.parametrize("name", ["qwen3.5-text-like", "qwen3.5-moe-text-like"])
def test_a_value_head_for_each_key(name: str, tmp_path: Path) -> None:
    """Files have Hugging Face's order."""
    source = VARIANTS[name].make(tmp_path / "hf", linear_num_value_heads=2)
    file = write_gguf(source, tmp_path / "m.gguf")
    assert all(piece.columns is None for piece in open_checkpoint(file))
    _assert_same_logits(name, source, file, tmp_path / "cache")


def test_layers_by_list(tmp_path: Path) -> None:
    """A list has an item for the layer that predicts further tokens too."""
    types = ["full_attention", "linear_attention", "full_attention"]
    source = VARIANTS["qwen3.5-text-like"].make(tmp_path / "hf", layer_types=types)
    file = write_gguf(source, tmp_path / "m.gguf")
    _assert_same_logits("qwen3.5-text-like", source, file, tmp_path / "cache")
    key = "qwen35__attention__recurrent_layers"
    assert _config(file)["layer_types"] == types
    assert _config(file, **{key: _REMOVED})["layer_types"] == [*types[1:2] * 2, types[0]]
    for value in ([True, False], True):
        with pytest.raises(ValueError, match="recurrent_layers must be a list of 3 items, not "):
            _config(file, **{key: value})


def test_first_files_of_qwen_3_next(tmp_path: Path) -> None:
    """Those before December 2025 have queries, keys, values and gates in one matrix."""
    sizes = {"group_count": 2, "time_step_rank": 6, "state_size": 3, "inner_size": 12}
    rows = np.arange(2 * (2 * 3 + 2 * 3 * 2) * 4, dtype=np.float32).reshape(-1, 4)
    gates = np.arange(12 * 4, dtype=np.float32).reshape(-1, 4)
    stored = {"blk.0.ssm_in.weight": rows, "blk.0.ssm_ba.weight": gates}
    tensors = _read(_write(tmp_path / "m.gguf", "qwen3next", stored, **sizes))
    keys = rows.reshape(2, 18, 4)
    parts = (keys[:, :3], keys[:, 3:6], keys[:, 6:12], keys[:, 12:])
    *qkv, gate = (part.reshape(-1, 4) for part in parts)
    beta, decay = (part.reshape(-1, 4) for part in np.split(gates.reshape(2, 6, 4), 2, axis=1))
    wanted = {"qkv": np.concatenate(qkv), "z": gate, "b": beta, "a": decay}
    assert tensors.keys() == {f"model.layers.0.linear_attn.in_proj_{one}.weight" for one in wanted}
    for one, numbers in wanted.items():
        found = tensors[f"model.layers.0.linear_attn.in_proj_{one}.weight"]
        assert np.array_equal(found.numpy(), numbers)


def test_rates(tmp_path: Path) -> None:
    rates = np.array([-1.0, -0.5, -8.0, -0.0], np.float32)
    tensors = _read(_write(tmp_path / "m.gguf", "falcon-h1", {"blk.0.ssm_a": rates[:, None]}))
    found = tensors["model.layers.0.mamba.A_log"]
    torch.testing.assert_close(-found.exp(), torch.from_numpy(rates))
    for number in (0.5, np.nan):
        rates[2] = number
        file = _write(tmp_path / "m.gguf", "falcon-h1", {"blk.0.ssm_a": rates[:, None]})
        with pytest.raises(ValueError, match=r"m\.gguf: tensor 'blk\.0\.ssm_a' has numbers that"):
            _read(file)


@pytest.mark.parametrize(
    ("architecture", "tensor", "shape", "message"),
    [
        ("qwen35", "attn_qkv.weight", (8, 4), r"has 8 rows, not 6 value heads of 2 after 12 oth"),
        ("qwen35", "ssm_out.weight", (4, 8), r"has 8 rows, not 6 value heads of 2 after 0 others"),
        ("qwen35", "ssm_out.weight", (4,), r"has the shape \[4\], not 2 axes"),
        ("qwen35", "ssm_dt.bias", (5,), r"has 5 rows, not 6 value heads of 1 after 0 others"),
        ("qwen3next", "ssm_ba.weight", (8, 4), r"has 8 rows, not 2 key heads of 6"),
        ("qwen3next", "ssm_in.weight", (8,), r"has the shape \[8\], not 2 axes"),
    ],
)
def test_shapes_that_do_not_fit(
    architecture: str, tensor: str, shape: tuple[int, ...], message: str, tmp_path: Path
) -> None:
    sizes = {"group_count": 2, "time_step_rank": 6, "state_size": 3, "inner_size": 12}
    stored = {f"blk.0.{tensor}": np.ones(shape, np.float32)}
    file = _write(tmp_path / "m.gguf", architecture, stored, **sizes)
    with pytest.raises(ValueError, match=rf"m\.gguf: tensor 'blk\.0\.{tensor}'.*{message}"):
        list(open_checkpoint(file))


def test_heads_that_do_not_fit(tmp_path: Path) -> None:
    source = VARIANTS["qwen3.5-text-like"].make(tmp_path / "hf")
    file = write_gguf(source, tmp_path / "m.gguf")
    for key, value in (("group_count", 4), ("inner_size", 62)):
        with pytest.raises(ValueError, match=r"qwen35\.ssm has .* which do not fit one another"):
            _config(file, **{f"qwen35__ssm__{key}": value})


def test_kinds_of_lfm_2(tmp_path: Path) -> None:
    source = VARIANTS["lfm2-like"].make(tmp_path / "hf")
    file = write_gguf(source, tmp_path / "m.gguf")
    with pytest.raises(ValueError, match="LFM2 with a sliding window is not supported"):
        _config(file, lfm2__attention__sliding_window=8)
    with pytest.raises(ValueError, match=r"head_count_kv has \[1, 2\], not one number"):
        _config(file, lfm2__attention__head_count_kv=[1, 2, 0])


def test_kinds_of_granite_4(tmp_path: Path) -> None:
    source = VARIANTS["granite-4-small-like"].make(tmp_path / "hf")
    file = write_gguf(source, tmp_path / "m.gguf")
    for value in (True, _REMOVED):
        with pytest.raises(ValueError, match="rotary positions, as Bamba has, are not supported"):
            _config(file, granitehybrid__rope__scaling__finetuned=value)
    with pytest.raises(ValueError, match="inner_size must be a multiple of 72, not 150"):
        _config(file, granitehybrid__ssm__inner_size=150)
    with pytest.raises(ValueError, match="inner_size is 144, which 5 heads cannot share evenly"):
        _config(file, granitehybrid__ssm__time_step_rank=5)
