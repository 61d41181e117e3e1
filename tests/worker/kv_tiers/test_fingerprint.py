"""KV of other weights, or in another layout, has another fingerprint."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from support.checkpoints import make_checkpoint
from support.models import kernels_for
from taco_proto.config import ModelConfig, WorkerConfig
from taco_worker.backends.model_loading import load_step_model
from taco_worker.devices.transfers import Transfers
from taco_worker.kv_tiers.fingerprint import fingerprint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("llama"))


def fingerprint_of(path: Path, serves: str = "kernels", **changes: object) -> bytes:
    block_size = int(str(changes.pop("block_size", 16)))
    kv = str(changes.pop("kv", "auto"))
    length = int(str(changes.pop("length", 512)))
    model = replace(ModelConfig(model=str(path)), **changes)  # type: ignore[arg-type]
    config = WorkerConfig(model=model, block_size=block_size, kv_cache_dtype=kv)
    transfers = Transfers(torch.device("cpu"))
    loaded, step_model = load_step_model(config, kernels_for(serves, 1), transfers)
    return fingerprint(config, loaded.files, step_model, length)


def test_a_copy_of_the_weights_has_the_same_fingerprint(checkpoint: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(checkpoint, tmp_path / "copy")
    found = fingerprint_of(checkpoint)
    assert len(found) == 16
    assert fingerprint_of(copy) == found


def test_options_that_change_kv_change_the_fingerprint(checkpoint: Path) -> None:
    found = [
        fingerprint_of(checkpoint),
        fingerprint_of(checkpoint, "torch"),
        fingerprint_of(checkpoint, kv="bfloat16"),
        fingerprint_of(checkpoint, kv="int8"),
        fingerprint_of(checkpoint, kv="fp8"),
        fingerprint_of(checkpoint, kv="fp8_e5m2"),
        fingerprint_of(checkpoint, block_size=32),
        fingerprint_of(checkpoint, dtype="bfloat16"),
        fingerprint_of(checkpoint, quantization="int8"),
        fingerprint_of(checkpoint, rope_theta=5000.0),
        fingerprint_of(checkpoint, rope_scaling={"rope_type": "linear", "factor": 2.0}),
        fingerprint_of(checkpoint, load_format="dummy"),
        fingerprint_of(checkpoint, load_format="dummy", seed=1),
    ]
    assert len(set(found)) == len(found)


DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}  # the original length is the model's, 512
LINEAR = {"rope_type": "linear", "factor": 2.0}


def test_a_length_that_changes_positions_changes_the_fingerprint(checkpoint: Path) -> None:
    def found(scaling: dict[str, object], length: int) -> bytes:
        return fingerprint_of(checkpoint, rope_scaling=scaling, length=length)

    assert len({found(DYNAMIC, length) for length in (256, 512, 768, 1024)}) == 3
    assert found(DYNAMIC, 256) == found(DYNAMIC, 512)
    assert found(LINEAR, 512) == found(LINEAR, 1024)
    assert fingerprint_of(checkpoint, length=64) == fingerprint_of(checkpoint)


def test_other_weights_have_another_fingerprint(checkpoint: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(checkpoint, tmp_path / "copy")
    weights = copy / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert fingerprint_of(copy) != fingerprint_of(checkpoint)


def test_another_config_has_another_fingerprint(checkpoint: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(checkpoint, tmp_path / "copy")
    config = copy / "config.json"
    config.write_text(config.read_text().replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-05'))
    assert fingerprint_of(copy) != fingerprint_of(checkpoint)
