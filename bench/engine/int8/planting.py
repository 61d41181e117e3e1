"""Plants outlier channels into a Llama: what per-token int8 activations are worst at."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from bench.engine.int8.llama import SmallLlama, read_llama

# compensated: the columns that read a channel are divided by what its numbers are multiplied with,
# so that the model stays the same; bare: they are not, so weights do not show which channels
# are outliers.
Planting = Literal["none", "compensated", "bare"]
PLANTINGS: tuple[Planting, ...] = ("none", "compensated", "bare")

# A power of two: bf16 weights stay exact.
GROWTH = 64.0
CHANNELS = 4


def plant(model: SmallLlama, planting: Planting, seed: int = 0) -> SmallLlama:
    """A copy of `model` whose products each read `CHANNELS` channels that are `GROWTH` times as
    great.
    """
    if planting == "none":
        return model
    generator = torch.Generator().manual_seed(seed)
    shape = model.shape
    parameters = {name: tensor.clone() for name, tensor in model.parameters.items()}
    divisor = GROWTH if planting == "compensated" else 1.0

    def choose(size: int) -> Tensor:
        return torch.randperm(size, generator=generator)[:CHANNELS]

    def after_norm(norm: str, readers: tuple[str, ...]) -> None:
        channels = choose(shape.hidden_size)
        parameters[norm][channels] *= GROWTH
        for reader in readers:
            parameters[reader][:, channels] /= divisor

    for layer in range(shape.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        after_norm(
            f"{prefix}input_layernorm.weight",
            tuple(f"{attention}{part}_proj.weight" for part in "qkv"),
        )
        after_norm(
            f"{prefix}post_attention_layernorm.weight",
            (f"{mlp}gate_proj.weight", f"{mlp}up_proj.weight"),
        )
        channels = choose(shape.intermediate_size)
        parameters[f"{mlp}up_proj.weight"][channels] *= GROWTH
        parameters[f"{mlp}down_proj.weight"][:, channels] /= divisor
        # A dim of a KV head is a channel of each query head that reads it.
        dims = choose(shape.num_key_value_heads * shape.head_dim)
        parameters[f"{attention}v_proj.weight"][dims] *= GROWTH
        heads = shape.num_attention_heads // shape.num_key_value_heads
        columns = parameters[f"{attention}o_proj.weight"].view(
            shape.hidden_size, shape.num_key_value_heads, heads, shape.head_dim
        )
        for dim in dims.tolist():
            columns[:, dim // shape.head_dim, :, dim % shape.head_dim] /= divisor
    after_norm("model.norm.weight", ("lm_head.weight",))
    return SmallLlama(shape, parameters)


def write_planted(folder: Path, target: Path, planting: Planting) -> None:
    """Copy a bf16 Llama's checkpoint into an empty folder, with outliers; its LM head is untied."""
    shutil.copytree(folder, target, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    parameters = plant(read_llama(folder), planting).parameters
    tensors = {name: tensor.bfloat16().clone() for name, tensor in parameters.items()}
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
