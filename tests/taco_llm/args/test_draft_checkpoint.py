"""Distinguishing draft models from Medusa and EAGLE heads by their files."""

import json
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch

from support.fake_hub import only_hub
from taco_llm.args.draft_checkpoint import are_heads
from taco_llm.args.engine_args import EngineArgs
from taco_proto.errors import ConfigurationError
from taco_worker.speculation.heads.head_checkpoint import find_head_checkpoint

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


def test_heads_of_the_hub_are_downloaded_to_the_wanted_directory(tmp_path: Path) -> None:
    config = json.dumps({"medusa_num_heads": 2}).encode()
    files = {"config.json": config, "medusa_lm_head.safetensors": b"m"}
    with only_hub({"org/heads": files}) as fetched:
        args = EngineArgs(
            model="demo", speculative_model="org/heads", download_dir=str(tmp_path / "downloads")
        )
        speculation = args.speculation_config()
        assert speculation is not None
        assert speculation.heads == "org/heads"
        directory = find_head_checkpoint("org/heads", speculation.download_dir)
    assert directory.is_relative_to(tmp_path / "downloads")
    assert sorted(fetched) == ["config.json", "medusa_lm_head.safetensors"]


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
