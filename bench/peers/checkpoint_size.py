"""Sizes of a checkpoint and its KV cache, computed from the files alone."""

import json
from pathlib import Path
from typing import Any

BLOCK_SIZE = 16


def weight_bytes(checkpoint: Path) -> int:
    return sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))


def kv_bytes_per_token(checkpoint: Path) -> int:
    """Bytes of keys and values (or of the latent of both) of all layers per token, in 16 bits."""
    config = _config(checkpoint)
    if latent := config.get("kv_lora_rank"):
        return config["num_hidden_layers"] * (latent + config["qk_rope_head_dim"]) * 2
    num_heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // num_heads
    num_kv_heads = config.get("num_key_value_heads", num_heads)
    kinds = config.get("layer_types") or ["full_attention"] * config["num_hidden_layers"]
    num_layers = sum(kind != "linear_attention" for kind in kinds)
    return 2 * num_layers * num_kv_heads * head_dim * 2


def longest_sequence(checkpoint: Path) -> int:
    """The model's own maximum length, in tokens."""
    return _config(checkpoint)["max_position_embeddings"]


def num_blocks(checkpoint: Path, kv_gib: int) -> int:
    """Number of TACO's KV blocks in `kv_gib` GiB."""
    return (kv_gib << 30) // (BLOCK_SIZE * kv_bytes_per_token(checkpoint))


def _config(checkpoint: Path) -> dict[str, Any]:
    return json.loads((checkpoint / "config.json").read_text())
