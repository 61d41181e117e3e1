"""Quantized copies of checkpoints, as the writers of GPTQ and AWQ would upload them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.packing.integers import Integers

PACKED_MODULES = re.compile(
    r"\.(?:[qkvo]_proj|(?:gate|up|down)_proj|gate_up_proj|qkv_proj|w[123]|c_attn|c_proj|c_fc)$"
)
_CONV1D = re.compile(r"\.(?:c_attn|c_proj|c_fc)$")  # GPT-2 stores [in, out]

Packed = tuple[dict[str, Tensor], Tensor]
"""The tensors of a matrix by suffix, and its values, float32 [n, k]."""


def rounded(
    weight: Tensor,
    bits: int = 4,
    group: int = 32,
    *,
    symmetric: bool = True,
    ordered_columns: bool = False,
    seed: int = 0,
) -> Integers:
    """The matrix [n, k] rounded to the nearest codes, with float16 scales."""
    n, k = weight.shape
    groups = -(-k // group)
    of_column = np.arange(k) // group
    if ordered_columns:
        of_column = of_column[np.random.default_rng(seed).permutation(k)]
    highest = 2**bits - 1
    scales = torch.empty(n, groups)
    zeros = np.full((n, groups), 2 ** (bits - 1))
    for number in range(groups):
        part = weight[:, torch.from_numpy(of_column == number)].float()
        if symmetric:
            scales[:, number] = part.abs().amax(1) * 2 / highest
        else:
            low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
            scales[:, number] = (high - low) / highest
            zeros[:, number] = (-low / scales[:, number]).round().int().numpy()
    stored = scales.half()
    columns = torch.from_numpy(of_column)
    codes = (weight.float() / stored.float()[:, columns]).round().int().numpy() + zeros[
        :, of_column
    ]
    return Integers(bits, codes.clip(0, highest).astype(np.int64), zeros, stored, of_column)


def quantized_copy(
    path: Path,
    source: Path,
    pack: Callable[[str, Tensor], Packed | None],
    config: Mapping[str, Any],
) -> Path:
    """Write `source` to `path` with packed matrices, and their values back to `source`.

    Args:
        pack: gets the name of each module with a matrix, and the matrix [n, k]; None: it stays.
        config: quantization_config.
    """
    tensors = load_file(source / "model.safetensors")
    quantized = dict(tensors)
    for name, tensor in tensors.items():
        module, _, kind = name.rpartition(".")
        is_transposed = _CONV1D.search(module) is not None
        if kind != "weight" or tensor.ndim != 2:
            continue
        packed = pack(module, tensor.T if is_transposed else tensor)
        if packed is None:
            continue
        parts, values = packed
        tensors[name] = (values.T if is_transposed else values).contiguous()
        del quantized[name]
        quantized |= {module + suffix: part.contiguous() for suffix, part in parts.items()}
    shutil.copytree(source, path)
    fields = json.loads((path / "config.json").read_text())
    fields["quantization_config"] = dict(config)
    (path / "config.json").write_text(json.dumps(fields))
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    save_file(quantized, path / "model.safetensors", {"format": "pt"})
    return path
