"""LoRA adapters that the tokens of a step name. PEFT is the oracle."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.adapters import ALL_LINEAR, make_adapter, peft_model
from support.architectures.variant import token_sequences
from support.architectures.variants import VARIANTS
from support.checkpoints import make_checkpoint, plant_outliers
from support.models import kernels_for
from support.paged import PagedRunner
from taco_proto.config import ModelConfig, WorkerConfig
from taco_worker.backends.cpu.conversion import convert_model
from taco_worker.backends.model_loading import load_step_model
from taco_worker.devices.transfers import Transfers
from taco_worker.models.checkpoint import find_checkpoint
from taco_worker.models.step_model import StepModel
from taco_worker.models.weight_checks import check_weight_files

PREFIX = "base_model.model.model"
EMBEDDING = (("A", (2, 384)), ("B", (64, 2)))
ONE, OTHER, THIRD = token_sequences((24, 17, 40))
CHUNKS = {"one": ONE, "base": OTHER, "other": THIRD}
IDS = {"one": 0, "other": 1}


def load(
    base: Path,
    adapters: dict[str, Path],
    serves: str = "kernels",
    num_threads: int = 2,
    **fields: Any,
) -> StepModel:
    modules = tuple((name, str(path)) for name, path in adapters.items())
    settings = {"model": str(base), "dtype": "float32", "lora_modules": modules, **fields}
    config = WorkerConfig(model=ModelConfig(**settings))
    _, model = load_step_model(
        config, kernels_for(serves, num_threads), Transfers(torch.device("cpu"))
    )
    return model


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("llama-2-like", {"target_modules": ALL_LINEAR}),
        ("llama-2-like", {"target_modules": ["q_proj", "down_proj"], "use_rslora": True}),
        ("qwen2-like", {"target_modules": ["k_proj", "v_proj", "gate_proj"]}),
        ("gpt2-like", {"target_modules": ["c_attn", "c_proj", "c_fc"]}),  # stored as [in, out]
        ("phi-3-mini-4k-like", {"target_modules": ALL_LINEAR}),  # fused in the checkpoint
        ("falcon-7b-like", {"target_modules": ALL_LINEAR}),
        # The vision tower has layers of these names too; it is not loaded.
        ("gemma-3-4b-like", {"target_modules": ["q_proj", "o_proj"]}),
        ("deepseek-v2-lite-like", {"target_modules": ["kv_a_proj_with_mqa", "o_proj"]}),
    ],
)
def test_logits_are_those_of_peft(tmp_path: Path, name: str, settings: dict[str, Any]) -> None:
    base = VARIANTS[name].make(tmp_path / "base")
    models = {
        "one": peft_model(base, seed=1, rank=4, **settings),
        "other": peft_model(base, seed=2, rank=7, **settings),
    }
    adapters = {name: tmp_path / name for name in models}
    for each, model in models.items():
        model.save_pretrained(adapters[each])
    expected = {}
    with torch.no_grad():
        for each, tokens in CHUNKS.items():
            if each in models:
                expected[each] = models[each](torch.tensor([tokens])).logits[0]
        with models["one"].disable_adapter():
            expected["base"] = models["one"](torch.tensor([OTHER])).logits[0]
            plain = models["one"](torch.tensor([ONE])).logits[0]
    assert (plain - expected["one"]).abs().max() > 0.3

    for serves in ("kernels", "torch"):
        runner = PagedRunner(load(base, adapters, serves), adapters=IDS)
        actual = runner.step(CHUNKS)
        for each, logits in expected.items():
            torch.testing.assert_close(actual[each], logits, atol=1e-4, rtol=1e-4)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_checkpoint(tmp_path_factory.mktemp("base"), num_hidden_layers=2)
    return plant_outliers(path)  # int8 rows with and without outliers


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory, base: Path) -> dict[str, Path]:
    path = tmp_path_factory.mktemp("adapters")
    return {
        "one": make_adapter(path / "one", base, target_modules=["q_proj", "gate_proj", "o_proj"]),
        "other": make_adapter(path / "other", base, seed=2, rank=6),
    }


TYPES: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
    "nf4": {"dtype": "bfloat16", "quantization": "bitsandbytes"},
}


@cache
def model_of(base: Path, adapters: tuple[tuple[str, Path], ...], kind: str) -> StepModel:
    return load(base, dict(adapters), **TYPES[kind])


def run(model: StepModel, chunks: dict[str, list[int]]) -> dict[str, Tensor]:
    return PagedRunner(model, adapters=IDS).step(chunks)


@pytest.mark.parametrize("kind", TYPES)
def test_bits_of_a_sequence_do_not_depend_on_others(
    base: Path, adapters: dict[str, Path], kind: str
) -> None:
    model = model_of(base, tuple(adapters.items()), kind)
    together = run(model, CHUNKS)
    for name, tokens in CHUNKS.items():
        assert torch.equal(run(model, {name: tokens})[name], together[name])
        runner = PagedRunner(model, adapters=IDS)
        parts = [runner.step({name: tokens[:5]})[name], runner.step({name: tokens[5:]})[name]]
        assert torch.equal(torch.cat(parts), together[name])
    # Few output rows: the last layer runs for these alone.
    ends = np.cumsum([len(tokens) for tokens in CHUNKS.values()], dtype=np.int32)
    restricted = PagedRunner(model, adapters=IDS).logits_at(CHUNKS, ends - 1)
    assert torch.equal(restricted, torch.stack([logits[-1] for logits in together.values()]))
    on_one_thread = load(base, adapters, num_threads=1, **TYPES[kind])
    assert all(torch.equal(run(on_one_thread, CHUNKS)[name], together[name]) for name in CHUNKS)


@pytest.mark.parametrize("kind", TYPES)
def test_sequences_without_an_adapter_have_the_bits_of_the_base_model(
    base: Path, adapters: dict[str, Path], kind: str
) -> None:
    expected = run(load(base, {}, **TYPES[kind]), {"base": OTHER})["base"]
    assert torch.equal(run(model_of(base, tuple(adapters.items()), kind), CHUNKS)["base"], expected)


@pytest.mark.parametrize("quantized", ["int8", "nf4"])
def test_quantized_weights_leave_adapters_as_they_are(
    base: Path, adapters: dict[str, Path], quantized: str
) -> None:
    """An adapter multiplies the error of rounded weights by about the same factor."""
    logits = {kind: run(model_of(base, tuple(adapters.items()), kind), CHUNKS) for kind in TYPES}

    def error(kind: str, name: str) -> float:
        return float((logits["float32"][name] - logits[kind][name]).std())

    for name in IDS:
        factors = {
            kind: error(kind, name) / error(kind, "base") for kind in ("bfloat16", quantized)
        }
        assert factors[quantized] < 1.3 * factors["bfloat16"]


def test_a_converted_checkpoint_takes_adapters(
    base: Path, adapters: dict[str, Path], tmp_path: Path
) -> None:
    wanted = ModelConfig(model=str(base), **TYPES["int8"])
    convert_model(wanted, tmp_path, lambda: kernels_for("kernels"))
    converted = run(load(tmp_path, adapters, dtype="bfloat16"), CHUNKS)
    direct = run(model_of(base, tuple(adapters.items()), "int8"), CHUNKS)
    assert all(torch.equal(converted[name], logits) for name, logits in direct.items())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {f"{PREFIX}.embed_tokens.lora_embedding_{m}": torch.ones(s) for m, s in EMBEDDING},
            "changes model.embed_tokens.weight: adapters that requests name may change",
        ),
        (
            {f"{PREFIX}.norm.weight": torch.ones(64)},
            "changes model.norm.weight: adapters that requests name may change",
        ),
        (
            {
                "base_model.model.lm_head.lora_A.weight": torch.ones(2, 64),
                "base_model.model.lm_head.lora_B.weight": torch.ones(384, 2),
            },
            "changes lm_head.weight: adapters that requests name may change",
        ),
        (
            {
                f"{PREFIX}.layers.0.mlp.up_proj.lora_A.weight": torch.ones(2, 60),
                f"{PREFIX}.layers.0.mlp.up_proj.lora_B.weight": torch.ones(128, 2),
            },
            r"up_proj.weight is \[112, 64\] in the model",
        ),
    ],
)
def test_rejects_adapters_of_other_weights(
    base: Path, tmp_path: Path, content: dict[str, Tensor], message: str
) -> None:
    settings = {"peft_type": "LORA", "lora_alpha": 4}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    save_file(content, tmp_path / "adapter_model.safetensors")
    wanted = ModelConfig(model=str(base), lora_modules=(("sql", str(tmp_path)),))
    with pytest.raises(ValueError, match=message) as error:
        check_weight_files(find_checkpoint(wanted))
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_rejects_numbers_that_are_not_finite(base: Path, tmp_path: Path, value: float) -> None:
    """They would reach the tokens of other adapters."""
    make_adapter(tmp_path, base)
    file = tmp_path / "adapter_model.safetensors"
    tensors = load_file(file)
    next(iter(tensors.values()))[0, 0] = value
    save_file(tensors, file)
    with pytest.raises(ValueError, match=r"has numbers that are not finite in base_model\.model"):
        load(base, {"one": tmp_path})


def test_rejects_factors_that_overflow(base: Path, tmp_path: Path) -> None:
    make_adapter(tmp_path, base)
    file, settings = tmp_path / "adapter_model.safetensors", tmp_path / "adapter_config.json"
    save_file({name: tensor * 1e33 for name, tensor in load_file(file).items()}, file)
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "lora_alpha": 9e8}))
    with pytest.raises(ValueError, match="overflows with its lora_alpha"):
        load(base, {"one": tmp_path})
