"""Mistral 7B and similar models: Llama with a sliding window in every layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from taco_worker.models.decoder_config import DecoderConfig
from taco_worker.models.recipe import Recipe
from taco_worker.models.recipes import llama


def decoder_config(hf: Mapping[str, Any]) -> DecoderConfig:
    config = llama.decoder_config(hf)
    return replace(config, sliding_windows=(hf.get("sliding_window"),) * config.num_layers)


RECIPE = Recipe(decoder_config, llama.weight_map, llama.canonical_name)
