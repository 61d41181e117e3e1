"""Scales of float8 KV caches, in vLLM's file and in a checkpoint."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file


def scales_content(factors: Sequence[float], **changes: Any) -> dict[str, Any]:
    """The content of a file with these factors of the layers of a Llama."""
    by_layer = {str(layer): factor for layer, factor in enumerate(factors)}
    cache = {"dtype": "float8_e4m3fn", "scaling_factor": {"0": by_layer}}
    return {"model_type": "llama", "kv_cache": cache, **changes}


def write_scales_file(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def add_tensors(checkpoint: Path, numbers: Mapping[str, float | Sequence[float]]) -> Path:
    """Add scales to the weights of a checkpoint, by their names in a layer's attention."""
    file = checkpoint / "model.safetensors"
    tensors = load_file(file)
    for name, value in numbers.items():
        tensors[f"model.layers.{name}"] = torch.tensor(value, dtype=torch.float32)
    save_file(tensors, file, {"format": "pt"})
    return checkpoint
