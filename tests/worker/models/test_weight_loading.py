"""Weight files in all formats, and all errors in them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file, save_model
from torch import Tensor
from transformers import AutoModelForCausalLM

from support.architectures.variants import VARIANTS
from support.checkpoints import make_checkpoint
from support.models import make_network
from taco_worker.backends.torch.plan_network import PlanNetwork
from taco_worker.backends.torch.plan_weights import load_network
from taco_worker.models.config import load_hf_config
from taco_worker.models.plan.parameters import fills
from taco_worker.models.registry import supported_architectures
from taco_worker.models.weight_files import CheckpointFiles, LoadFormat, find_weight_files

CPU = torch.device("cpu")

_NAMES = supported_architectures()


def _load(
    path: Path, dtype: torch.dtype = torch.float32, load_format: LoadFormat = "auto"
) -> PlanNetwork:
    config = load_hf_config(path, load_format=load_format)
    network = make_network(config.plan, dtype)
    load_network(network, config)
    return network


def _assert_same(first: PlanNetwork, second: PlanNetwork) -> None:
    expected = dict(first.named_parameters())
    actual = dict(second.named_parameters())
    assert expected.keys() == actual.keys()
    for name, parameter in expected.items():
        assert torch.equal(parameter, actual[name]), name


def _tensors(path: Path) -> dict[str, Tensor]:
    return load_file(path / "model.safetensors")


def _replace_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    save_file({k: v.contiguous() for k, v in tensors.items()}, path / "model.safetensors")


@pytest.mark.parametrize(
    "name",
    [name for name, one in VARIANTS.items() if one.architecture in _NAMES],
)
def test_the_sources_fill_each_row_once(tmp_path: Path, name: str) -> None:
    plan = load_hf_config(VARIANTS[name].make(tmp_path / "model")).plan
    for parameter in plan.parameters.values():
        assert len(list(fills(parameter))) == len(parameter.layouts)
        for layout in parameter.layouts:
            rows = [row for one in layout for row in range(one.start, one.start + one.count)]
            expected = parameter.shape[0 if parameter.num_experts is None else 1]
            assert sorted(rows) == list(range(expected)), parameter.name


def test_formats_agree(tmp_path: Path) -> None:
    single = _load(make_checkpoint(tmp_path / "single"))
    state_dict = _load(make_checkpoint(tmp_path / "bin", weights="bin"))
    _assert_same(single, state_dict)

    tensors = _tensors(tmp_path / "single")
    sharded = tmp_path / "single"
    (sharded / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map = {
        name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)
    }
    for file in set(weight_map.values()):
        save_file({n: tensors[n] for n in names if weight_map[n] == file}, sharded / file)
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    _assert_same(single, _load(sharded))


def test_state_dict_from_before_torch_1_6(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, weights="bin")
    expected = _load(path)
    file = path / "pytorch_model.bin"
    content = torch.load(file, weights_only=True)
    torch.save(content, file, _use_new_zipfile_serialization=False)
    _assert_same(expected, _load(path))


def test_safetensors_come_first_unless_asked(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, seed=1, weights="bin")
    from_state_dict = _load(path)
    make_checkpoint(tmp_path, seed=2)
    from_safetensors = _load(path, load_format="safetensors")
    _assert_same(from_safetensors, _load(path))
    _assert_same(from_state_dict, _load(path, load_format="pt"))
    assert not torch.equal(
        from_state_dict.by_name["embed_tokens.weight"],
        from_safetensors.by_name["embed_tokens.weight"],
    )


def test_weights_are_converted(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path)
    narrow, wide = _load(path, torch.bfloat16), _load(path)
    for name, parameter in narrow.named_parameters():
        assert parameter.dtype == torch.bfloat16
        assert torch.equal(parameter, wide.get_parameter(name).bfloat16()), name


def test_names_of_the_bare_model_and_buffers(tmp_path: Path) -> None:
    """The hub's gpt2 and opt checkpoints: no prefix, causal masks as buffers, a tied lm_head."""
    for architecture, prefix, tied in (
        ("GPT2LMHeadModel", "transformer.", "wte.weight"),
        ("OPTForCausalLM", "model.", "decoder.embed_tokens.weight"),
    ):
        path = make_checkpoint(tmp_path / architecture, architecture)
        expected = _load(path)
        bare = {name.removeprefix(prefix): t for name, t in _tensors(path).items()}
        bare["lm_head.weight"] = bare[tied].clone()
        if architecture == "GPT2LMHeadModel":
            bare["h.0.attn.bias"] = torch.ones(1, 1, 512, 512).tril()
            bare["h.1.attn.masked_bias"] = torch.tensor(-1e4)
        _replace_tensors(path, bare)
        _assert_same(expected, _load(path))


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "GPT2LMHeadModel"])
def test_tied_embeddings_under_the_name_of_the_head(tmp_path: Path, architecture: str) -> None:
    """`safetensors.torch.save_model` stores tied weights once, under the name that sorts first."""
    path = make_checkpoint(tmp_path, architecture, tie_word_embeddings=True)
    expected = _load(path)
    model = AutoModelForCausalLM.from_pretrained(path)
    save_model(model, str(path / "model.safetensors"))
    assert "lm_head.weight" in _tensors(path)
    assert not any(name.endswith(("embed_tokens.weight", "wte.weight")) for name in _tensors(path))
    _assert_same(expected, _load(path))


def test_old_llama_buffers_are_ignored(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path)
    expected = _load(path)
    buffers = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    _replace_tensors(path, _tensors(path) | buffers)
    _assert_same(expected, _load(path))


def test_dummy_weights_need_no_file_and_repeat(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path)
    (path / "model.safetensors").unlink()
    first, second = _load(path, load_format="dummy"), _load(path, load_format="dummy")
    _assert_same(first, second)
    assert all(bool(p.isfinite().all()) for p in first.parameters())
    assert set(first.by_name["layers.0.attn_norm.weight"].tolist()) == {1.0}
    assert float(first.by_name["layers.0.mlp.down_proj.weight"].std()) > 0.01


def test_all_mismatched_tensors_are_named_at_once(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path)
    tensors = _tensors(path)
    del tensors["model.norm.weight"], tensors["model.layers.1.self_attn.k_proj.weight"]
    tensors["model.layers.0.self_attn.q_norm.weight"] = torch.ones(16)
    tensors["model.layers.0.mlp.up_proj.weight"] = torch.ones(100, 64)
    _replace_tensors(path, tensors)
    with pytest.raises(ValueError, match="do not fit") as caught:
        _load(path)
    message = str(caught.value)
    assert "missing tensors: model.layers.1.self_attn.k_proj.weight, model.norm.weight;" in message
    assert "unexpected tensors: model.layers.0.self_attn.q_norm.weight;" in message
    expected = "model.layers.0.mlp.up_proj.weight (is [100, 64], should be [112, 64])"
    assert f"wrong shapes: {expected}" in message


def test_shapes_are_named_as_stored(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, "GPT2LMHeadModel")
    tensors = _tensors(path)
    tensors["transformer.h.0.mlp.c_fc.weight"] = torch.ones(256, 64)
    tensors["transformer.h.1.ln_1.weight"] = torch.ones(1)
    _replace_tensors(path, tensors)
    with pytest.raises(ValueError, match="wrong shapes") as caught:
        _load(path)
    assert "c_fc.weight (is [256, 64], should be [64, 256])" in str(caught.value)
    assert "ln_1.weight (is [1], should be [64])" in str(caught.value)


def test_a_missing_expert_is_named_in_the_layout_of_the_others(tmp_path: Path) -> None:
    """One 3-D tensor could fill the parameter, too, but the file has most experts one by one."""
    path = VARIANTS["mixtral-8x7b-like"].make(tmp_path / "model")
    missing = [f"model.layers.0.block_sparse_moe.experts.2.w{part}.weight" for part in (1, 3)]
    _replace_tensors(path, {k: v for k, v in _tensors(path).items() if k not in missing})
    with pytest.raises(ValueError, match=rf"missing tensors: {', '.join(missing)}\Z"):
        _load(path)


def test_integers_are_not_taken_for_weights(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "model")
    name = "model.layers.0.mlp.down_proj.weight"
    tensors = _tensors(path)
    _replace_tensors(path, {**tensors, name: tensors[name].to(torch.int8)})
    with pytest.raises(
        ValueError, match=rf"wrong types: {name} \(is I8, should be a floating-point type\)\Z"
    ):
        _load(path)


def test_long_lists_are_cut(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path)
    _replace_tensors(path, {"x": torch.ones(1)})
    with pytest.raises(ValueError, match=r"and 16 more; unexpected tensors: x$"):
        _load(path)


@pytest.mark.parametrize("weights", ["safetensors", "bin"])
@pytest.mark.parametrize("kept", [0, 5, 0.5, 0.99])
def test_truncated_files(tmp_path: Path, weights: str, kept: float) -> None:
    path = make_checkpoint(tmp_path, weights=weights)
    file = path / {"safetensors": "model.safetensors", "bin": "pytorch_model.bin"}[weights]
    os.truncate(file, int(kept * file.stat().st_size) if 0 < kept < 1 else int(kept))
    with pytest.raises(ValueError, match=f"cannot read .*{file.name}"):
        _load(path)


@pytest.mark.parametrize("archive", [True, False])
def test_pickles_are_not_run(tmp_path: Path, archive: bool) -> None:
    path = make_checkpoint(tmp_path, weights="bin")
    trace = tmp_path / "executed"

    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return (trace.touch, ())

    file = path / "pytorch_model.bin"
    torch.save({"x": Attack()}, file, _use_new_zipfile_serialization=archive)
    with pytest.raises(ValueError, match="cannot read"):
        _load(path)
    assert not trace.exists()


def test_state_dict_of_something_else(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, weights="bin")
    torch.save([1, 2], path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="holds a list instead of tensors"):
        _load(path)
    torch.save({"step": 3}, path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="holds a int under 'step'"):
        _load(path)


def test_no_weights(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path)
    with pytest.raises(ValueError, match=r"no weights .* looked for pytorch_model\.bin"):
        _load(path, load_format="pt")
    (path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"model\.safetensors and pytorch_model\.bin"):
        _load(path)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ('{"weight_map": {"a": "model-1.safetensors"}}', "missing: model-1.safetensors"),
        ('{"weight_map": {"a": "../../secret.safetensors"}}', "missing: secret.safetensors"),
        ('{"weight_map": {"a": 3}}', "not an index"),
        ('{"weight_map": ["a"]}', "not an index"),
        ('{"weight_map": {}}', "it names none"),
        ('{"weight_map": {"a": "config.json"}}', "that are not .safetensors: config.json"),
        ("[]", "not an index"),
        ('{"weight_map"', "not an index"),
    ],
)
def test_damaged_index(tmp_path: Path, index: str, message: str) -> None:
    path = make_checkpoint(tmp_path)
    (path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ValueError, match=message):
        _load(path)


def test_old_names_of_gptq_files(tmp_path: Path) -> None:
    (tmp_path / "gptq_model-4bit-128g.safetensors").touch()
    for load_format in ("auto", "safetensors"):
        (file,) = find_weight_files(CheckpointFiles(tmp_path, load_format))
        assert file.name == "gptq_model-4bit-128g.safetensors"
    (tmp_path / "gptq_model-8bit--1g.safetensors").touch()
    with pytest.raises(ValueError, match=r"weights of several models: gptq_model-4bit-128g\.safe"):
        find_weight_files(CheckpointFiles(tmp_path))
    (tmp_path / "model.safetensors").touch()
    assert find_weight_files(CheckpointFiles(tmp_path)) == [tmp_path / "model.safetensors"]
