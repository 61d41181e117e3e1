"""Weights in Mistral's own format against the same weights in Hugging Face's."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.checkpoints import make_checkpoint
from taco_worker.models.config import load_hf_config
from taco_worker.models.mistral_format import hf_name, hf_rows
from taco_worker.models.tensor_files import iterate_tensors
from taco_worker.models.weight_checks import check_weight_files
from taco_worker.models.weight_files import CheckpointFiles, find_weight_files

_NAMES = {
    "model.embed_tokens": "tok_embeddings",
    "model.norm": "norm",
    "lm_head": "output",
    "model.layers": "layers",
    "self_attn": "attention",
    "q_proj": "wq",
    "k_proj": "wk",
    "v_proj": "wv",
    "o_proj": "wo",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp": "feed_forward",
    "gate_proj": "w1",
    "down_proj": "w2",
    "up_proj": "w3",
}


def _mistral_name(name: str) -> str:
    for hf, own in _NAMES.items():
        name = re.sub(rf"(?<![a-z_]){re.escape(hf)}(?![a-z_])", own, name)
    return name


def _rotate(vectors: Tensor, *, neighbours: bool) -> Tensor:
    """Rotary positions of [tokens, head_dim], by the definition, channel by channel."""
    result = torch.empty_like(vectors)
    half = vectors.shape[1] // 2
    for token in range(vectors.shape[0]):
        for i in range(half):
            first, second = (2 * i, 2 * i + 1) if neighbours else (i, i + half)
            angle = torch.tensor(token * 10000.0 ** (-i / half), dtype=vectors.dtype)
            a, b = vectors[token, first], vectors[token, second]
            result[token, first] = a * angle.cos() - b * angle.sin()
            result[token, second] = a * angle.sin() + b * angle.cos()
    return result


def test_rows_are_in_the_order_of_the_other_rotation() -> None:
    """Scores of attention are the same with either layout."""
    torch.manual_seed(0)
    head_dim, hidden = 8, 12
    query, key = torch.randn(2, head_dim, hidden, dtype=torch.float64)
    tokens = torch.randn(5, hidden, dtype=torch.float64)
    expected = (
        _rotate(tokens @ query.T, neighbours=True) @ _rotate(tokens @ key.T, neighbours=True).T
    )
    name = "layers.0.attention.w{}.weight"
    query = hf_rows(name.format("q"), query, head_dim)
    key = hf_rows(name.format("k"), key, head_dim)
    actual = (
        _rotate(tokens @ query.T, neighbours=False) @ _rotate(tokens @ key.T, neighbours=False).T
    )
    torch.testing.assert_close(actual, expected)


def _own_rows(tensor: Tensor, head_dim: int) -> Tensor:
    """Row 2i of a head is row i of Hugging Face's, row 2i + 1 is row i + head_dim / 2."""
    rows = []
    for start in range(0, tensor.shape[0], head_dim):
        for i in range(head_dim // 2):
            rows += [tensor[start + i], tensor[start + head_dim // 2 + i]]
    return torch.stack(rows)


@pytest.fixture
def both(tmp_path: Path) -> tuple[Path, Path]:
    """A checkpoint in Hugging Face's format and in Mistral's."""
    hf = make_checkpoint(tmp_path / "hf", "MistralForCausalLM", tie_word_embeddings=False)
    config = json.loads((hf / "config.json").read_text())
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    own = tmp_path / "own"
    own.mkdir()
    tensors = {}
    for name, tensor in load_file(hf / "model.safetensors").items():
        rotated = name.endswith(("q_proj.weight", "k_proj.weight"))
        tensors[_mistral_name(name)] = _own_rows(tensor, head_dim) if rotated else tensor
    save_file(tensors, own / "consolidated.safetensors")
    params = {
        "dim": config["hidden_size"],
        "n_layers": config["num_hidden_layers"],
        "n_heads": heads,
        "n_kv_heads": config["num_key_value_heads"],
        "head_dim": head_dim,
        "hidden_dim": config["intermediate_size"],
        "norm_eps": config["rms_norm_eps"],
        "vocab_size": config["vocab_size"],
        "sliding_window": config.get("sliding_window"),
        "max_seq_len": config["max_position_embeddings"],
    }
    (own / "params.json").write_text(json.dumps(params))
    return hf, own


def _tensors(directory: Path) -> dict[str, Tensor]:
    files = find_weight_files(CheckpointFiles(directory))
    return {name: t.clone() for file in files for name, t in iterate_tensors(file)}


def test_tensors_are_those_of_hugging_face(both: tuple[Path, Path]) -> None:
    expected, actual = map(_tensors, both)
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(actual[name], tensor), name
    check_weight_files(load_hf_config(both[1], load_format="mistral"))


def test_fp8_has_a_scale_per_matrix(both: tuple[Path, Path]) -> None:
    hf, own = both
    scale = torch.tensor(0.01)
    for directory, file, ends in (
        (hf, "model.safetensors", ("weight_scale", "input_scale")),
        (own, "consolidated.safetensors", ("qscale_weight", "qscale_act")),
    ):
        tensors = load_file(directory / file)
        for name, tensor in list(tensors.items()):
            if tensor.ndim == 2 and ".layers." in f".{name}":
                tensors[name] = (tensor / scale).to(torch.float8_e4m3fn)
                for end in ends:
                    tensors[name.removesuffix("weight") + end] = scale.clone()
        save_file(tensors, directory / file)
    tensors = load_file(own / "consolidated.safetensors")
    tensors["layers.1.attention.kv_fake_quantizer.qscale_act"] = scale
    save_file(tensors, own / "consolidated.safetensors")
    expected, actual = map(_tensors, both)
    expected["model.layers.1.self_attn.kv_scale"] = scale
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(actual[name].float(), tensor.float()), name
    params = json.loads((own / "params.json").read_text())
    params["quantization"] = {"qformat_weight": "fp8_e4m3"}
    (own / "params.json").write_text(json.dumps(params))
    check_weight_files(load_hf_config(own, load_format="mistral"))


@pytest.mark.parametrize("end", ["weight_packed", "weight_scale", "qscale_weight"])
def test_parts_of_matrices_that_have_rows_are_rejected(end: str) -> None:
    with pytest.raises(ValueError, match="another order of rows"):
        hf_rows(f"layers.0.attention.wk.{end}", torch.ones(8, 1), 8)
    one = torch.ones(1)
    assert hf_rows(f"layers.0.attention.wk.{end}", one, 8) is one


def test_shards_without_an_index(both: tuple[Path, Path]) -> None:
    _, own = both
    tensors = load_file(own / "consolidated.safetensors")
    expected = _tensors(own)
    (own / "consolidated.safetensors").unlink()
    names = sorted(tensors)
    for number in (1, 2):
        part = {name: tensors[name] for name in names[number - 1 :: 2]}
        save_file(part, own / f"consolidated-0000{number}-of-00002.safetensors")
    assert _tensors(own).keys() == expected.keys()
    (own / "consolidated-00001-of-00002.safetensors").unlink()
    with pytest.raises(ValueError, match="no weights in"):
        find_weight_files(CheckpointFiles(own, "mistral"))


def test_the_format_chooses_among_both(both: tuple[Path, Path]) -> None:
    hf, own = both
    shutil.copy(own / "consolidated.safetensors", hf)
    assert [f.name for f in find_weight_files(CheckpointFiles(hf))] == ["model.safetensors"]
    files = find_weight_files(CheckpointFiles(hf, "mistral"))
    assert [f.name for f in files] == ["consolidated.safetensors"]
    with pytest.raises(ValueError, match=r"consolidated weights need .*params\.json"):
        check_weight_files(load_hf_config(hf, load_format="mistral"))
    (hf / "params.json").write_text('{"dim": 64, "n_heads": 0}')
    with pytest.raises(ValueError, match="does not say the size of a head"):
        next(iter(iterate_tensors(files[0])))
    (hf / "params.json").write_text('{"head_dim": 5}')
    with pytest.raises(ValueError, match="the size of a head is 5"):
        next(iter(iterate_tensors(files[0])))


def test_experts_and_parts_for_images() -> None:
    prefix = "model.layers.3.block_sparse_moe"
    assert hf_name("layers.3.feed_forward.gate.weight") == f"{prefix}.gate.weight"
    name = "layers.3.feed_forward.experts.7.w2.weight"
    assert hf_name(name) == f"{prefix}.experts.7.w2.weight"
    assert hf_name("vision_encoder.ln_pre.weight") is None
    assert hf_name("layers.0.unknown.weight") == "layers.0.unknown.weight"
