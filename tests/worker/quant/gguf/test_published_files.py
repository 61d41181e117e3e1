"""What published GGUF files have that today's converter does not write."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from support.architectures.variants import VARIANTS
from support.gguf_files.convert import write_gguf
from support.mixed_batches import in_chunks, three_sequences
from support.models import load_step_model
from support.paged import PagedRunner
from taco_worker.quant.gguf.checkpoint import (
    GgufCheckpoint,
    is_other_file,
    only_model,
    open_checkpoint,
)
from taco_worker.quant.gguf.header import GgufHeader, TensorInfo
from taco_worker.quant.gguf.model_directory import directory_files, model_directory

pytestmark = pytest.mark.kernels

_REMOVED = object()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    source = VARIANTS["llama-2-like"].make(folder / "hf", num_key_value_heads=6)
    return write_gguf(source, folder / "tiny.gguf")


def _files(file: Path, tensors: dict[str, TensorInfo] | None = None, **keys: Any) -> dict[str, Any]:
    """The files of the directory if keys had other values; "__" is a full stop."""
    (header,) = open_checkpoint(file).headers.values()
    metadata = dict(header.metadata)
    for name, value in keys.items():
        metadata.pop(name.replace("__", "."), None)
        if value is not _REMOVED:
            metadata[name.replace("__", ".")] = value
    changed = GgufHeader(metadata, tensors or header.tensors, header.digest)
    return dict(directory_files(GgufCheckpoint({file: changed})))


def _config(file: Path, **keys: Any) -> dict[str, Any]:
    config: dict[str, Any] = _files(file, **keys)["config.json"]
    return config


def test_no_number_of_kv_heads(file: Path) -> None:
    """There are as many as heads."""
    assert _config(file, llama__attention__head_count_kv=_REMOVED) == _config(file)


def test_numbers_by_layer(file: Path) -> None:
    """Lists of one number are that number."""
    lists = {"head_count": [6, 6], "head_count_kv": [6, 6]}
    keys: dict[str, Any] = {f"llama__attention__{name}": one for name, one in lists.items()}
    assert _config(file, **keys, llama__feed_forward_length=[104, 104]) == _config(file)
    with pytest.raises(ValueError, match="head_count_kv differs between layers"):
        _config(file, llama__attention__head_count_kv=[6, 2])


def test_numbers_of_single_layers(tmp_path: Path) -> None:
    """Layers of DeciLM have their own numbers of KV heads, or no attention."""
    source = VARIANTS["nemotron-nas-like"].make(tmp_path / "hf")
    file = write_gguf(source, tmp_path / "m.gguf")
    with pytest.raises(ValueError, match="head_count_kv has 3 items, and none of layer 3"):
        _config(file, deci__attention__head_count_kv=[2, 0, 3])
    with pytest.raises(ValueError, match="head_count_kv must have integers from 0, not -1"):
        _config(file, deci__attention__head_count_kv=[2, 0, 3, -1])
    with pytest.raises(ValueError, match=r"'blk\.3\.attn_k\.weight' is in a layer without atten"):
        _config(file, deci__attention__head_count_kv=[2, 0, 3, 0])
    with pytest.raises(ValueError, match=r"head_count has \[6\] and 12, not one number"):
        _config(file, deci__attention__head_count=[6, 0, 6, 12])
    with pytest.raises(ValueError, match="one matrix instead of attention are not supported"):
        _config(file, deci__attention__head_count=6)


def test_factors_of_minicpm(tmp_path: Path) -> None:
    """Files before 2026 may lack them: the models of that time have the same ones."""
    source = VARIANTS["minicpm-2b-like"].make(tmp_path / "hf")
    file = write_gguf(source, tmp_path / "m.gguf")
    config = _config(file)
    assert (config["scale_emb"], config["dim_model_base"]) == (3.0, 40)
    assert config["scale_depth"] == pytest.approx(0.9)
    names = ("embedding_scale", "residual_scale", "logit_scale")
    without = _config(file, **{f"minicpm__{name}": _REMOVED for name in names})
    factors = [without[name] for name in ("scale_emb", "scale_depth", "dim_model_base")]
    assert factors == [12.0, 1.4, 256]
    with pytest.raises(ValueError, match=r"logit_scale must divide .* into an integer, not 0\.7"):
        _config(file, minicpm__logit_scale=0.7)


def test_keys_that_say_nothing_of_the_model(file: Path) -> None:
    keys: dict[str, Any] = {
        "general__file_type": 15,
        "general__quantization_version": 2,
        "general__tags": ["text-generation"],
        "general__name": _REMOVED,
        "llama__expert_count": 0,
        "llama__expert_used_count": 0,
        "llama__vocab_size": 7,
        "llama__tensor_data_layout": "Meta AI original pth",
        "quantize__imatrix__entries_count": 224,
    }
    assert _config(file, **keys) == _config(file)


@pytest.mark.parametrize(
    ("keys", "scaling"),
    [
        ({"rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"rope.scale_linear": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"rope.scaling.type": "linear"}, None),
        ({"rope.scaling.factor": 1.0}, None),
        ({"rope.scaling.factor": 0.0}, None),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 8.0}, None),
        (
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 64,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        ),
    ],
)
def test_scaled_positions(keys: dict[str, Any], scaling: dict[str, Any] | None, file: Path) -> None:
    """A factor without a type is linear, as in files of 2023."""
    given = {f"llama.{key}".replace(".", "__"): value for key, value in keys.items()}
    assert _config(file, **given).get("rope_scaling") == scaling


def test_scaled_positions_of_several_axes(tmp_path: Path) -> None:
    source = VARIANTS["qwen2-vl-like"].make(tmp_path / "hf")
    file = write_gguf(source, tmp_path / "model.gguf", "F32")
    plain = _config(file)["rope_scaling"]
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 64}
    keys: dict[str, Any] = {f"qwen2vl__rope__scaling__{key}": one for key, one in scaling.items()}
    assert _config(file, **keys)["rope_scaling"] == {
        **plain,
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    assert sum(plain["mrope_section"]) > 0


def test_yarn_without_a_factor(file: Path) -> None:
    with pytest.raises(ValueError, match=r"it has no key 'llama\.rope\.scaling\.factor'"):
        _config(file, llama__rope__scaling__type="yarn")


def test_lists_of_end_tokens(file: Path) -> None:
    files = _files(file, tokenizer__ggml__eos_token_id=[5, 1])
    assert files["config.json"]["eos_token_id"] == 5
    assert files["generation_config.json"]["eos_token_id"][:2] == [5, 1]


def test_chat_templates_by_name(file: Path) -> None:
    keys: dict[str, Any] = {
        "tokenizer__chat_templates": ["tool_use"],
        "tokenizer__chat_template": "a",
        "tokenizer__chat_template__tool_use": "b",
    }
    assert _files(file, **keys)["tokenizer_config.json"]["chat_template"] == [
        {"name": "default", "template": "a"},
        {"name": "tool_use", "template": "b"},
    ]


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (31, "type Q4_0_4_4 is no longer part of the format: use a file of Q4_0$"),
        (33, "type Q4_0_8_8 is no longer part of the format: use a file of Q4_0$"),
        (36, "type IQ4_NL_4_4 is no longer part of the format: use a file of IQ4_NL$"),
        (4, "type Q4_2 is no longer part of the format$"),
        (42, "type Q2_0 is not supported"),
        (139, r"type 139 is one of ik_llama\.cpp's own, which are not supported"),
        (60, "type 60 is unknown"),
    ],
)
def test_types_of_other_files(number: int, message: str, file: Path, tmp_path: Path) -> None:
    content = bytearray(file.read_bytes())
    name = b"blk.0.ffn_up.weight"
    at = content.index(name) + len(name) + 4 + 2 * 8
    content[at : at + 4] = number.to_bytes(4, "little")
    (tmp_path / "other.gguf").write_bytes(content)
    with pytest.raises(
        ValueError, match=rf"other\.gguf: tensor 'blk\.0\.ffn_up\.weight': {message}"
    ):
        open_checkpoint(tmp_path / "other.gguf")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"llama.block_count": 2**24}, r"block_count is 16777216, and it has tensors of 2 layers"),
        (
            {"llama.embedding_length": 73},
            r"embedding_length is 73, and 'token_embd\.weight' has 72",
        ),
        ({"llama.attention.head_count": 2**20}, "72 rows are not 1048576 heads of an even size"),
        ({"llama.expert_count": 2**20}, r"expert_count is 1048576, and it has tensors of 0"),
        ({"llama.nextn_predict_layers": 2}, r"nextn_predict_layers is 2 of 2 layers"),
    ],
)
def test_false_counts(keys: dict[str, Any], message: str, file: Path) -> None:
    with pytest.raises(ValueError, match=message):
        _config(file, **{key.replace(".", "__"): value for key, value in keys.items()})


def _assert_same_logits(name: str, source: Path, file: Path, cache: Path) -> None:
    sequences = three_sequences()
    model = load_step_model(model_directory(file, cache), "kernels")
    logits = in_chunks(PagedRunner(model, num_blocks=40), sequences)
    expected = VARIANTS[name].reference(source)(list(sequences.values()))
    for one, wanted in zip(sequences, expected, strict=True):
        torch.testing.assert_close(logits[one], wanted, atol=2e-4, rtol=0)


def test_first_file_without_tensors(tmp_path: Path) -> None:
    """`--no-tensor-first-split`: a header, then all tensors in other files."""
    source = VARIANTS["llama-2-like"].make(tmp_path / "hf")
    first = write_gguf(source, tmp_path / "m.gguf", max_tensors=9, small_first_shard=True)
    assert not open_checkpoint(first).headers[first].tensors
    _assert_same_logits("llama-2-like", source, first, tmp_path / "cache")


def test_head_that_shares_the_embeddings(tmp_path: Path) -> None:
    source = VARIANTS["llama-2-like"].make(tmp_path / "hf", tie_word_embeddings=True)
    file = write_gguf(source, tmp_path / "m.gguf")
    assert "output.weight" not in open_checkpoint(file).tensors
    _assert_same_logits("llama-2-like", source, file, tmp_path / "cache")


def test_frequencies_in_every_layer(tmp_path: Path) -> None:
    """Files of 2023 have blk.N.attn_rot_embd.weight."""
    source = VARIANTS["llama-2-like"].make(tmp_path / "hf")
    file = write_gguf(source, tmp_path / "m.gguf", extra=("blk.1.attn_rot_embd.weight",))
    _assert_same_logits("llama-2-like", source, file, tmp_path / "cache")


def test_tensors_under_two_names(tmp_path: Path) -> None:
    source = VARIANTS["mixtral-8x7b-like"].make(tmp_path / "hf")
    file = write_gguf(source, tmp_path / "m.gguf", extra=("blk.1.ffn_up.2.weight",))
    with pytest.raises(
        ValueError, match=r"are both model\.layers\.1\.block_sparse_moe\.experts\.2"
    ):
        model_directory(file, tmp_path / "cache")


@pytest.mark.parametrize(
    ("name", "is_other"),
    [
        ("mmproj-model-f16.gguf", True),
        ("Gemma4_26B.BF16-mmproj.gguf", True),
        ("model.imatrix.gguf", True),
        ("model-Q4_K_M.gguf", False),
    ],
)
def test_files_beside_models(name: str, is_other: bool, tmp_path: Path) -> None:
    assert is_other_file(name) is is_other
    (tmp_path / "model-Q4_0.gguf").touch()
    (tmp_path / name).touch()
    if is_other:
        assert only_model(tmp_path) == tmp_path / "model-Q4_0.gguf"
    else:
        with pytest.raises(ValueError, match="has several models"):
            only_model(tmp_path)


def test_experts_chosen_by_softmax_or_sigmoid(tmp_path: Path) -> None:
    """Files of DeepSeek V2 do not say it; the vocabulary of GLM 4.7 Flash shows its own."""
    source = VARIANTS["deepseek-v3-like"].make(tmp_path / "hf", num_hidden_layers=47)
    file = write_gguf(source, tmp_path / "m.gguf")
    key: dict[str, Any] = {"deepseek2__expert_gating_func": _REMOVED}
    assert _config(file)["architectures"] == ["DeepseekV3ForCausalLM"]
    assert _config(file, **key)["architectures"] == ["DeepseekV2ForCausalLM"]
    (header,) = open_checkpoint(file).headers.values()
    embeddings = header.tensors["token_embd.weight"]
    wide = replace(embeddings, shape=(154_880, embeddings.shape[1]))
    files = _files(file, {**header.tensors, "token_embd.weight": wide}, **key)
    assert files["config.json"]["architectures"] == ["DeepseekV3ForCausalLM"]
    with pytest.raises(ValueError, match=r"expert_gating_func is 3; 1 .softmax. and 2 .sigmoid."):
        _config(file, deepseek2__expert_gating_func=3)
    assert json.dumps(files)
