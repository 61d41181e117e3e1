"""Checkpoints in 4 bits are read as the numbers that they were made of, rounded."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from bench.peers.make_quantized import make_quantized
from support.checkpoints import make_checkpoint
from taco_worker.models.config import load_hf_config

GROUP = 64
NAME = "model.layers.0.mlp.down_proj"
COLUMNS = 160


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    return make_checkpoint(path, num_hidden_layers=1, intermediate_size=COLUMNS)


def test_the_last_group_of_gptq_has_the_columns_that_are_left(
    checkpoint: Path, tmp_path: Path
) -> None:
    make_quantized(checkpoint, tmp_path / "packed", "gptq", GROUP)
    weight = load_file(checkpoint / "model.safetensors")[f"{NAME}.weight"].float()
    stored = load_file(tmp_path / "packed/model.safetensors")
    quantization = load_hf_config(tmp_path / "packed").quantization
    assert quantization is not None
    form = quantization.format_of(NAME, *weight.shape)
    assert form is not None
    tensors = {suffix: stored[NAME + suffix] for suffix in form.tensors if NAME + suffix in stored}
    for first in range(0, COLUMNS, GROUP):
        columns = slice(first, first + GROUP)
        error = (form.dequantize(tensors)[:, columns] - weight[:, columns]).abs()
        step = weight[:, columns].abs().amax(1, keepdim=True) / 7
        assert bool((error <= step * 0.51).all())


def test_awq_has_whole_groups(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"has {COLUMNS} columns, no whole groups of {GROUP}"):
        make_quantized(checkpoint, tmp_path / "packed", "awq", GROUP)
