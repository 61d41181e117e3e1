"""Reads the scales of a float8 KV cache from the JSON file of `--quantization-param-path`.

The format is vLLM's:

    {"model_type": "llama",
     "kv_cache": {"dtype": "float8_e4m3fn", "scaling_factor": {"0": {"0": 0.0305, "1": 0.0277}}}}

A factor is that of the keys and the values of one layer, below the rank of tensor parallelism. A
stored number is the number divided by its factor.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taco_common.json_file import read_json_object
from taco_kernels.kv_entry import EntryScales
from taco_worker.kv_scales.layer_scales import check_scale, entry_scales
from taco_worker.models.config import ModelConfig

_ONLY_RANK = "0"


def read_scales_file(path: Path, model: ModelConfig, dtype: str) -> tuple[EntryScales, ...]:
    """The scales of each KV entry.

    Args:
        dtype: of the KV cache, by its name in torch.

    Raises:
        ValueError: the file cannot be read, is not of this format, or is for another model or
            dtype; one line that names the file.
    """
    try:
        content = read_json_object(path)
    except FileNotFoundError:
        raise ValueError(f"cannot read {path}: No such file") from None
    model_type = content.get("model_type")
    if model_type is not None and model.model_type is not None and model_type != model.model_type:
        raise ValueError(
            f"{path} has the scales of a model of type {model_type!r:.100}, not "
            f"{model.model_type!r}"
        )
    cache = _object(content, "kv_cache", path)
    if cache.get("dtype") != dtype:
        raise ValueError(
            f"{path}: kv_cache.dtype is {cache.get('dtype')!r:.100}, and the KV cache is {dtype}"
        )
    ranks = _object(cache, "scaling_factor", path, "kv_cache.")
    if list(ranks) != [_ONLY_RANK]:
        shown = ", ".join(map(repr, list(ranks)[:5])) or "none"
        raise ValueError(
            f"{path}: kv_cache.scaling_factor has the ranks {shown:.100}; a worker runs the whole "
            f"model and needs those of rank {_ONLY_RANK!r} alone"
        )
    factors = _object(ranks, _ONLY_RANK, path, "kv_cache.scaling_factor.")
    scales: dict[int, EntryScales] = {}
    for layer, factor in factors.items():
        name = f"{path}: the scaling factor of layer {layer[:20]}"
        if not layer.isascii() or not layer.isdecimal() or str(int(layer)) != layer:
            raise ValueError(f"{path}: {layer[:20]!r} is no number of a layer")
        if isinstance(factor, bool) or not isinstance(factor, int | float):
            raise ValueError(f"{name} must be a number, not {factor!r:.100}")
        scale = check_scale(_as_float(factor), name)
        scales[int(layer)] = EntryScales(scale, scale)
    return entry_scales(scales, model.plan, str(path))


def _object(parent: Mapping[str, Any], name: str, path: Path, prefix: str = "") -> dict[str, Any]:
    value = parent.get(name)
    if not isinstance(value, dict):
        raise ValueError(f"{path}: {prefix}{name} must be an object, not {value!r:.100}")
    return value


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return float("inf")
