"""LoRA adapters that PEFT writes, merged at load. PEFT is the oracle."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.adapters import ALL_LINEAR, peft_model
from support.architectures.variant import token_sequences
from support.architectures.variants import VARIANTS
from support.checkpoints import make_checkpoint
from support.cpu_kernels import NATIVE, kernels_of
from support.models import kernels_for
from support.paged import PagedRunner
from taco_proto.config import ModelConfig, WorkerConfig
from taco_worker.backends.cpu.conversion import convert_model
from taco_worker.backends.model_loading import load_step_model
from taco_worker.devices.transfers import Transfers
from taco_worker.kv_tiers.fingerprint import fingerprint

FILE = "adapter_model.safetensors"
(IDS,) = token_sequences((24,))


def logits(base: Path, adapter: Path | None, serves: str = "kernels", **settings: Any) -> Tensor:
    merge_lora = None if adapter is None else str(adapter)
    model = ModelConfig(**{"model": str(base), "dtype": "float32", **settings})
    config = WorkerConfig(model=replace(model, merge_lora=merge_lora))
    transfers = Transfers(torch.device("cpu"))
    _, loaded = load_step_model(config, kernels_for(serves), transfers)
    return PagedRunner(loaded).step({"a": IDS})["a"]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("llama-2-like", {"target_modules": ALL_LINEAR}),
        ("llama-2-like", {"target_modules": ["q_proj", "down_proj"], "use_rslora": True}),
        (
            "llama-2-like",
            {
                "target_modules": ["q_proj", "v_proj", "down_proj"],
                "rank_pattern": {"down_proj": 2},
                "alpha_pattern": {"layers.0.self_attn.q_proj": 3, "down_proj": 5},
            },
        ),
        (
            "llama-2-like",
            {
                "target_modules": ["q_proj", "k_proj", "v_proj"],
                # The first key that matches counts, and a dot is any character.
                "alpha_pattern": {"q_proj|v_proj": 30, "v_proj": 5, "^q_proj": 9, "k.proj": 2},
            },
        ),
        (
            "llama-2-like",
            {
                "target_modules": ["q_proj", "v_proj"],
                "alpha_pattern": {
                    r".*layers\.0\..*proj": 30,
                    "^model.layers.1.self_attn.q_proj": 1,
                },
            },
        ),
        ("llama-2-like", {"target_modules": ["q_proj"], "modules_to_save": ["norm", "lm_head"]}),
        ("llama-2-like", {"target_modules": ["embed_tokens", "lm_head"]}),
        ("qwen2-like", {"target_modules": ["q_proj", "v_proj"], "bias": "all"}),
        ("gpt2-like", {"target_modules": ["c_attn", "c_proj", "c_fc"]}),  # stored as [in, out]
        ("phi-3-mini-4k-like", {"target_modules": ALL_LINEAR}),
        ("falcon-7b-like", {"target_modules": ALL_LINEAR}),
        # The vision tower has layers of these names too; it is not loaded.
        ("gemma-3-4b-like", {"target_modules": ["q_proj", "o_proj"]}),
    ],
)
def test_logits_are_those_of_peft(tmp_path: Path, name: str, settings: dict[str, Any]) -> None:
    base = VARIANTS[name].make(tmp_path / "base")
    adapted = peft_model(base, **settings)
    adapted.save_pretrained(tmp_path / "adapter")
    with torch.no_grad():
        expected = adapted(torch.tensor([IDS])).logits[0]
    assert (logits(base, None) - expected).abs().max() > 0.5
    for serves in ("kernels", "torch"):
        torch.testing.assert_close(
            logits(base, tmp_path / "adapter", serves), expected, atol=1e-4, rtol=1e-4
        )


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("base"), dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory, base: Path) -> Path:
    path = tmp_path_factory.mktemp("adapter")
    peft_model(base, target_modules=ALL_LINEAR).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory, base: Path, adapter: Path) -> Path:
    """The checkpoint with the adapter merged in float32, by hand."""
    path = make_checkpoint(tmp_path_factory.mktemp("merged"), dtype=torch.bfloat16)
    tensors, pairs = load_file(base / "model.safetensors"), load_adapter(adapter)
    for name in [name for name in pairs if "lora_A" in name]:
        a, b = pairs[name], pairs[name.replace("lora_A", "lora_B")]
        target = name.removeprefix("base_model.model.").replace(".lora_A", "")
        weight = tensors[target]
        tensors[target] = (weight.float() + (b @ a) * (6 / 4)).to(weight.dtype)
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    return path


def load_adapter(path: Path) -> dict[str, Tensor]:
    return load_file(path / FILE)


@pytest.mark.parametrize("quantization", [None, "int8", "bitsandbytes"])
def test_bits_are_those_of_a_merged_checkpoint(
    base: Path, adapter: Path, merged: Path, quantization: str | None
) -> None:
    settings: dict[str, Any] = {"dtype": "bfloat16", "quantization": quantization}
    expected = logits(merged, None, **settings)
    assert torch.equal(logits(base, adapter, **settings), expected)
    assert not torch.equal(logits(base, None, **settings), expected)


def test_pickled_adapters_are_read_too(base: Path, adapter: Path, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text((adapter / "adapter_config.json").read_text())
    torch.save(load_adapter(adapter), tmp_path / "adapter_model.bin")
    assert torch.equal(logits(base, tmp_path), logits(base, adapter))


def test_experts_are_changed_one_by_one(tmp_path: Path) -> None:
    base = VARIANTS["mixtral-8x7b-like"].make(tmp_path / "base")
    target = "model.layers.1.block_sparse_moe.experts.2.w1.weight"
    weight = load_file(base / "model.safetensors")[target]
    a, b = torch.randn(3, weight.shape[1]), torch.randn(weight.shape[0], 3)
    prefix = f"base_model.model.{target.removesuffix('.weight')}"
    write_adapter(tmp_path / "a", {f"{prefix}.lora_A.weight": a, f"{prefix}.lora_B.weight": b}, 3)
    write_adapter(tmp_path / "b", {f"base_model.model.{target}": weight + b @ a}, 3)
    by_product = logits(base, tmp_path / "a")
    torch.testing.assert_close(by_product, logits(base, tmp_path / "b"), atol=1e-4, rtol=1e-4)
    assert not torch.equal(by_product, logits(base, None))


def write_adapter(path: Path, tensors: dict[str, Tensor], alpha: float) -> None:
    path.mkdir()
    (path / "adapter_config.json").write_text(json.dumps({"lora_alpha": alpha}))
    save_file({name: one.contiguous() for name, one in tensors.items()}, path / FILE)


def test_conversion_merges_the_adapter(
    base: Path, adapter: Path, merged: Path, tmp_path: Path
) -> None:
    wanted = ModelConfig(model=str(base), dtype="bfloat16", merge_lora=str(adapter))
    out = tmp_path / "out"
    assert convert_model(wanted, out, lambda: kernels_of(NATIVE[-1], 2)) > 0
    settings = {"dtype": "bfloat16"}
    assert torch.equal(logits(out, None, **settings), logits(merged, None, **settings))
    with pytest.raises(ValueError, match="are converted: give merge_lora when they are converted"):
        logits(out, adapter, **settings)


def test_kv_of_another_adapter_has_another_fingerprint(
    base: Path, adapter: Path, tmp_path: Path
) -> None:
    tensors = load_adapter(adapter)
    name = next(iter(tensors))
    tensors[name] = tensors[name] + 1
    for alpha in (6, 7):
        write_adapter(tmp_path / str(alpha), tensors, alpha)

    def of(path: Path | None) -> bytes:
        model = ModelConfig(model=str(base), merge_lora=None if path is None else str(path))
        config = WorkerConfig(model=model)
        transfers = Transfers(torch.device("cpu"))
        loaded, step_model = load_step_model(config, kernels_for("kernels", 1), transfers)
        return fingerprint(config, loaded.files, step_model, 512)

    found = {of(None), of(adapter), of(tmp_path / "6"), of(tmp_path / "7")}
    assert len(found) == 4
    assert of(adapter) in found
