"""gpt-oss: sinks and windows on shared prefixes, the published sizes, MXFP4 checkpoints."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from support.architectures.variant import token_sequences
from support.architectures.variants import VARIANTS
from support.models import load_step_model
from support.paged import PagedRunner
from taco_worker.models.config import load_hf_config
from taco_worker.models.plan.ops.attend import Attend
from taco_worker.models.plan.ops.experts import Experts
from taco_worker.quant.formats.mxfp4 import Mxfp4Matrix

VARIANT = VARIANTS["gpt-oss-like"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return VARIANT.make(tmp_path_factory.mktemp("model") / "gpt-oss")


@pytest.mark.parametrize("serves", ["kernels", "torch"])
def test_sequences_share_a_prefix(path: Path, serves: str) -> None:
    """The shared blocks hold no sinks: each sequence adds them to its own sums."""
    first, other = token_sequences((40, 40), seed=2)
    second = [*first[:32], *other[32:]]
    runner = PagedRunner(load_step_model(path, serves), block_size=16)
    runner.step({"a": first})
    runner.share_prefix("b", "a", 2)
    actual = runner.step({"b": second[32:], "c": other})
    expected = VARIANT.reference(path)([second, other])
    torch.testing.assert_close(actual["b"], expected[0][32:], atol=1e-4, rtol=0)
    torch.testing.assert_close(actual["c"], expected[1], atol=1e-4, rtol=0)


def test_the_published_sizes_and_options(tmp_path: Path) -> None:
    """config.json of openai/gpt-oss-20b without its quantization."""
    config = {
        "architectures": ["GptOssForCausalLM"],
        "attention_bias": True,
        "attention_dropout": 0.0,
        "eos_token_id": 200002,
        "experts_per_token": 4,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2880,
        "initial_context_length": 4096,
        "initializer_range": 0.02,
        "intermediate_size": 2880,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "max_position_embeddings": 131072,
        "model_type": "gpt_oss",
        "num_attention_heads": 64,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 24,
        "num_key_value_heads": 8,
        "num_local_experts": 32,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "rope_type": "yarn",
            "truncate": False,
        },
        "rope_theta": 150000,
        "router_aux_loss_coef": 0.9,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "vocab_size": 201088,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    plan = load_hf_config(tmp_path).plan
    assert plan.num_elements == 20_914_757_184  # the parameters that its publisher counts
    assert plan.max_position_embeddings == 131072
    assert [op.window for op in plan.ops if isinstance(op, Attend)] == [128, None] * 12
    assert {(op.alpha, op.limit) for op in plan.ops if isinstance(op, Experts)} == {(1.702, 7.0)}


def _as_mxfp4(path: Path, source: Path, *, seed: int = 0) -> Path:
    """The checkpoint `source` with random MXFP4 experts, also written back to it in bfloat16."""
    tensors = load_file(source / "model.safetensors")
    quantized, generator = dict(tensors), torch.Generator().manual_seed(seed)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        num_experts, inputs, outputs = tensors[name].shape
        blocks = torch.randint(
            256, (num_experts, outputs, inputs // 32, 16), generator=generator, dtype=torch.uint8
        )
        scales = torch.randint(120, 125, blocks.shape[:-1], generator=generator, dtype=torch.uint8)
        tensors[name] = convert_moe_packed_tensors(blocks, scales).contiguous()
        del quantized[name]
        quantized |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    shutil.copytree(source, path)
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (path / "config.json").write_text(json.dumps(config))
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    save_file(quantized, path / "model.safetensors", {"format": "pt"})
    return path


@pytest.fixture(scope="module")
def mxfp4(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A quantized checkpoint, and its numbers in bfloat16."""
    folder = tmp_path_factory.mktemp("mxfp4")
    sizes: dict[str, Any] = {"hidden_size": 96, "intermediate_size": 64}
    dense = VARIANT.make(folder / "dense", dtype=torch.bfloat16, **sizes)
    return _as_mxfp4(folder / "quantized", dense), dense


@pytest.mark.parametrize("serves", ["kernels", "torch"])
def test_mxfp4_experts_have_the_bits_of_the_dequantized_ones(
    mxfp4: tuple[Path, Path], serves: str
) -> None:
    (ids,) = token_sequences((40,))
    quantized, dense = (
        PagedRunner(load_step_model(path, serves, dtype="float32")).step({"a": ids})["a"]
        for path in mxfp4
    )
    assert torch.equal(quantized, dense)
    (expected,) = VARIANT.reference(mxfp4[1])([ids])
    torch.testing.assert_close(quantized, expected, atol=1e-4, rtol=0)


def test_missing_scales_are_named(mxfp4: tuple[Path, Path], tmp_path: Path) -> None:
    path = shutil.copytree(mxfp4[0], tmp_path / "model")
    tensors = load_file(path / "model.safetensors")
    name = "model.layers.1.mlp.experts.down_proj_scales"
    del tensors[name]
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=rf"missing tensors: {re.escape(name)}\Z"):
        load_step_model(path, "kernels")


@pytest.mark.parametrize("num_columns", [32, 64, 70])
def test_mxfp4_numbers_are_those_of_transformers(num_columns: int) -> None:
    """All codes with all scales but 0, a subnormal number in bfloat16, and those near infinity."""
    num_blocks = -(-num_columns // 32)
    scales = torch.arange(1, 245, dtype=torch.uint8)[:, None].expand(-1, num_blocks)
    codes = torch.arange(244 * num_blocks * 16).remainder(256).to(torch.uint8)
    codes = codes.view(244, num_blocks, 16)
    format_ = Mxfp4Matrix(244, num_columns)
    stored = {"_blocks": codes, "_scales": scales}
    assert {name: one.shape for name, one in format_.tensors.items()} == {
        name: tuple(one.shape) for name, one in stored.items()
    }
    actual = format_.dequantize(stored)
    expected = convert_moe_packed_tensors(codes[None], scales[None], dtype=torch.float32)[0].T
    assert torch.equal(actual, expected[:, :num_columns])


@pytest.mark.parametrize("method", ["none-such", ["mxfp4"]])
def test_other_quantized_checkpoints_are_refused_in_one_line(
    tmp_path: Path, method: object
) -> None:
    path = VARIANT.make(tmp_path / "model", quantization_config={"quant_method": method})
    message = f"{path}/config.json: the checkpoint is quantized ({method})"
    with pytest.raises(ValueError, match=rf"\A{re.escape(message)}[^\n]+\Z"):
        load_hf_config(path)
