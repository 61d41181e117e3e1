"""Distinguishing draft models from Medusa and EAGLE heads by their files."""

import json
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch

from taco_llm.args.draft_checkpoint import are_heads
from taco_proto.errors import ConfigurationError

ONE_LAYER = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1}


def directory_of(path: Path, config: dict[str, object]) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
@pytest.mark.parametrize(("name", "expected"), [("fc.weight", True), ("lm_head.weight", False)])
def test_a_one_layer_model_is_eagle_by_its_weights(
    tmp_path: Path, suffix: str, name: str, expected: bool
) -> None:
    directory = directory_of(tmp_path, ONE_LAYER)
    tensors = {name: torch.zeros(1)}
    if suffix == "safetensors":
        safetensors.torch.save_file(tensors, directory / "model.safetensors")
    else:
        torch.save(tensors, directory / "pytorch_model.bin")
    assert are_heads(str(directory)) is expected


def test_config_names_heads_and_models(tmp_path: Path) -> None:
    assert are_heads(str(directory_of(tmp_path, {"medusa_num_heads": 2})))
    assert are_heads(str(directory_of(tmp_path, {"draft_vocab_size": 5})))
    assert not are_heads(str(directory_of(tmp_path, ONE_LAYER | {"num_hidden_layers": 2})))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", b"\xff" * 100),
        ("model.safetensors", (10**10).to_bytes(8, "little")),
        ("model.safetensors", (3).to_bytes(8, "little") + b"[]]"),
        ("pytorch_model.bin", b"PK\x05\x06" + b"\xff" * 18),
    ],
    ids=["length of 16 EiB", "length of 10 GB", "no JSON", "damaged archive"],
)
def test_damaged_weights_are_one_error(tmp_path: Path, name: str, content: bytes) -> None:
    directory = directory_of(tmp_path, ONE_LAYER)
    (directory / name).write_bytes(content)
    with pytest.raises(ConfigurationError, match="the speculative model"):
        are_heads(str(directory))


def test_a_pipe_is_not_read_as_a_weight_file(tmp_path: Path) -> None:
    directory = directory_of(tmp_path, ONE_LAYER)
    os.mkfifo(directory / "model.safetensors")
    assert not are_heads(str(directory))
