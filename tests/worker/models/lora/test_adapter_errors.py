"""Adapters that cannot be merged get one line that names the file, before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from support.checkpoints import make_checkpoint
from taco_proto.config import ModelConfig
from taco_worker.models.checkpoint import find_checkpoint
from taco_worker.models.weight_checks import check_weight_files

PREFIX = "base_model.model.model.layers.0"
Q = f"{PREFIX}.self_attn.q_proj"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("tied"), tie_word_embeddings=True)


def tensors(rank: int = 2, b_rank: int = 2, rows: int = 64) -> dict[str, Tensor]:
    """A and B of the queries of layer 0, which are [64, 64]."""
    return {
        f"{Q}.lora_A.weight": torch.ones(rank, 64),
        f"{Q}.lora_B.weight": torch.ones(rows, b_rank),
    }


def write(
    path: Path, content: dict[str, Tensor] | None = None, settings: object = None, **fields: Any
) -> Path:
    path.mkdir(exist_ok=True)
    config = {"peft_type": "LORA", "lora_alpha": 4, **fields} if settings is None else settings
    (path / "adapter_config.json").write_text(json.dumps(config))
    if content is not None:
        save_file(content, path / "adapter_model.safetensors")
    return path


def check(base: Path, adapter: str | Path, **settings: Any) -> None:
    wanted = ModelConfig(model=str(base), merge_lora=str(adapter), **settings)
    check_weight_files(find_checkpoint(wanted))


def test_a_whole_adapter_passes(base: Path, tmp_path: Path) -> None:
    check(base, write(tmp_path, tensors()))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type 'IA3' is not supported, only LORA"),
        ({"use_dora": True}, "use_dora True is not supported"),
        ({"target_parameters": ["experts.w"]}, r"target_parameters \['experts.w'\] is not"),
        ({"init_lora_weights": "pissa_niter_4"}, "it changes the weights of the base model"),
        ({"init_lora_weights": "olora"}, "it changes the weights of the base model"),
        ({"bias": "some"}, "bias 'some' is not supported"),
        ({"lora_alpha": None}, "lora_alpha must be a number, not None"),
        ({"lora_alpha": 10**400}, "lora_alpha must be a number, not 1000"),
        ({"lora_alpha": True}, "lora_alpha must be a number, not True"),
        ({"use_bdlora": True}, "use_bdlora True is not supported"),
        ({"alpha_pattern": [1]}, "alpha_pattern must be an object"),
        ({"alpha_pattern": {"(a+)+$": 1}}, "is not supported: it may have no groups"),
        ({"alpha_pattern": {".*.*.*.*.*q": 1}}, "and 4 repetitions"),
        ({"alpha_pattern": {"*q": 1}}, r"alpha_pattern '\*q' is not valid"),
        ({"alpha_pattern": {"q_proj": "4"}}, "alpha_pattern must be a number, not '4'"),
    ],
)
def test_settings_that_a_merge_does_not_cover(
    base: Path, tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as error:
        check(base, write(tmp_path, tensors(), **fields))
    assert str(tmp_path / "adapter_config.json") in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "has no tensors for this model"),
        (tensors(rank=3), "has the rank 3, and its B 2"),
        (tensors(rows=32), r"q_proj.weight is \[64, 64\] in the model, and \[32, 64\] in the"),
        (tensors(rank=0, b_rank=0), "has the rank 0"),
        ({f"{Q}.lora_A.weight": torch.ones(2, 64)}, "lora_A.weight and no .*lora_B.weight"),
        (
            {f"{Q}.lora_A.weight": torch.ones(2, 64), f"{Q}.lora_B.weight": torch.ones(64)},
            "are not two matrices",
        ),
        ({f"{Q}.lora_B.weight": torch.ones(64, 2)}, "lora_B.weight is not supported"),
        ({f"{Q}.lora_magnitude_vector": torch.ones(64)}, "lora_magnitude_vector is not supported"),
        ({"q_proj.weight": torch.ones(2)}, "the tensor q_proj.weight is not supported"),
        (
            {f"{Q}.lora_A.weight": torch.ones(2, 64, dtype=torch.int8)},
            "is I8, not a floating-point type",
        ),
        ({f"{PREFIX}.mlp.q.weight": torch.ones(2)}, "the model has no model.layers.0.mlp.q.weight"),
        (
            {f"base_model.model.layer{i}.weight": torch.ones(1) for i in range(5)},
            "the model has no layer0.weight, layer1.weight, layer2.weight and 2 more",
        ),
    ],
)
def test_tensors_that_do_not_fit(
    base: Path, tmp_path: Path, content: dict[str, Tensor], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as error:
        check(base, write(tmp_path, content))
    assert str(tmp_path / "adapter_model.safetensors") in str(error.value)


@pytest.mark.parametrize(
    "content",
    [
        {"base_model.model.model.embed_tokens.weight": torch.ones(1)},
        {
            "base_model.model.model.embed_tokens.lora_embedding_A": torch.ones(2, 256),
            "base_model.model.model.embed_tokens.lora_embedding_B": torch.ones(64, 2),
        },
        {**tensors(), "base_model.model.lm_head.weight": torch.ones(384, 64)},
        {
            **tensors(),
            "base_model.model.lm_head.lora_A.weight": torch.ones(2, 64),
            "base_model.model.lm_head.lora_B.weight": torch.ones(384, 2),
        },
    ],
)
def test_embeddings_that_are_the_head_too(
    tied: Path, tmp_path: Path, content: dict[str, Tensor]
) -> None:
    with pytest.raises(ValueError, match="and the LM head of this model is its token embeddings"):
        check(tied, write(tmp_path, content))


def test_missing_and_damaged_files(base: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is no LoRA adapter: it has no adapter_config\.json"):
        check(base, tmp_path)
    with pytest.raises(ValueError, match=r"^\./none is no LoRA adapter"):
        check(base, "./none")
    write(tmp_path)
    with pytest.raises(ValueError, match=r"no adapter_model.safetensors or adapter_model.bin in"):
        check(base, tmp_path)
    write(tmp_path, tensors(), settings=[1])
    with pytest.raises(ValueError, match="it is not a JSON object"):
        check(base, tmp_path)
    file = write(tmp_path, tensors()) / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"adapter_model\.safetensors"):
        check(base, tmp_path)


def test_tensors_that_are_larger_than_their_file(base: Path, tmp_path: Path) -> None:
    write(tmp_path)
    wide = torch.ones(1).expand(10_000, 64)
    content = {
        f"{Q}.lora_A.weight": wide,
        f"{Q}.lora_B.weight": torch.ones(64, 1).expand(64, 10_000),
    }
    torch.save(content, tmp_path / "adapter_model.bin")
    with pytest.raises(ValueError, match="has tensors that are larger than the file"):
        check(base, tmp_path)


@pytest.mark.parametrize("name", ["~no-such-user/adapter", "a" * 5000])
def test_names_that_are_no_paths(base: Path, name: str) -> None:
    with pytest.raises(ValueError, match="is no path of a LoRA adapter"):
        check(base, name)


def test_weights_that_no_adapter_can_change(base: Path, tmp_path: Path) -> None:
    adapter = write(tmp_path / "adapter", tensors())
    with pytest.raises(ValueError, match="merge_lora and load_format dummy contradict"):
        check(base, adapter, load_format="dummy")
    quantized = make_checkpoint(tmp_path / "quantized")
    config = json.loads((quantized / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    (quantized / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="merge_lora does not work with a quantized checkpoint"):
        check(quantized, adapter)
