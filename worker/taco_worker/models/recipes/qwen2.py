"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from taco_worker.models.decoder_config import DecoderConfig
from taco_worker.models.recipe import Recipe
from taco_worker.models.recipes import llama


def decoder_config(hf: Mapping[str, Any]) -> DecoderConfig:
    config = llama.decoder_config(hf)
    return replace(config, qkv_bias=True, sliding_windows=_sliding_windows(hf, config.num_layers))


def _sliding_windows(hf: Mapping[str, Any], num_layers: int) -> tuple[int | None, ...]:
    """Layers from max_window_layers on have a window; newer configs list it in layer_types."""
    if not hf.get("use_sliding_window", False):
        return (None,) * num_layers
    window = hf["sliding_window"]
    if layer_types := hf.get("layer_types"):
        return tuple(window if kind == "sliding_attention" else None for kind in layer_types)
    first_sliding_layer = hf["max_window_layers"]
    return tuple(window if layer >= first_sliding_layer else None for layer in range(num_layers))


RECIPE = Recipe(decoder_config, llama.weight_map, llama.canonical_name)
