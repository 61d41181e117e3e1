"""transformers, the reference of the format, loads the generated checkpoint."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from bench.peers.checkpoint_size import kv_bytes_per_token, weight_bytes
from bench.peers.make_checkpoint import SHAPES, make_checkpoint

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("shape", ["qwen2-tiny", "olmoe-tiny"])
def test_a_tiny_shape_is_whole(shape: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, SHAPES[shape])
    load: Any = AutoModelForCausalLM.from_pretrained
    model, found = load(tmp_path, dtype="auto", output_loading_info=True)
    assert not found["missing_keys"]
    assert not found["unexpected_keys"]
    assert model.dtype == torch.bfloat16
    size = sum(parameter.numel() * 2 for parameter in model.parameters())
    assert 0 <= weight_bytes(tmp_path) - size < 16384  # the header of the file
    cache = model(torch.zeros(1, 3, dtype=torch.long), use_cache=True).past_key_values
    per_token = sum(2 * layer.keys[0, :, 0].numel() * 2 for layer in cache.layers)
    assert kv_bytes_per_token(tmp_path) == per_token


def test_every_token_has_a_text(tmp_path: Path) -> None:
    config = SHAPES["qwen2-tiny"]
    make_checkpoint(tmp_path, config)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == config["vocab_size"]
    assert tokenizer.decode([300, config["vocab_size"] - 1]) == " 300 8191"
