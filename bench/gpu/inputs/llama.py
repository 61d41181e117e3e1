"""Llama-3-8B with random weights, and a tiny model to test the scripts with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.gpu.parts.machine import Ceilings

_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
LLAMA_3_8B = _LLAMA | {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    # Llama-3 has 8,192. Longer contexts cost the same as in a model that supports them.
    "max_position_embeddings": 40960,
    "dtype": "bfloat16",
}
TINY = _LLAMA | {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "dtype": "float32",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """Bytes and operations of a step, with bfloat16 weights and KV.

    Attributes:
        weight_bytes: read in a step: all weights but the embedding.
    """

    weight_bytes: int
    kv_bytes_per_token: int

    @classmethod
    def of(cls, config: dict[str, Any]) -> Shape:
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        kv_size = hidden // heads * kv_heads
        layer = 2 * hidden * hidden + 2 * hidden * kv_size + 3 * hidden * inner
        layers = config["num_hidden_layers"]
        return cls(2 * (layers * layer + hidden * config["vocab_size"]), 4 * layers * kv_size)

    def decode_floor_ms(self, batch: int, context: int, ceilings: Ceilings) -> float:
        """Returns the lower bound of a decode step: weights read once or their products, and KV
        read.
        """
        products = self.weight_bytes * batch / ceilings.bf16_tflops / 1e9
        return max(self._read_ms(self.weight_bytes, ceilings), products) + self._read_ms(
            batch * context * self.kv_bytes_per_token, ceilings
        )

    def _read_ms(self, num_bytes: int, ceilings: Ceilings) -> float:
        return num_bytes / ceilings.copy_gb_per_s / 1e6


@contextmanager
def model_folder(config: dict[str, Any]) -> Iterator[str]:
    """A folder with config.json and no weights, for `load_format="dummy"`."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        yield folder
