"""Names of the tensors in which checkpoints store the scales of an 8-bit KV cache."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

# Of the keys, of the values, or one for both.
ScaleKind = Literal["key", "value", "both"]

_LAYER = r"(?:^|\.)(?:layers|h|blocks)\.(?P<layer>\d+)\.(?:[\w.]*\.)?\w*(?:attn|attention)\w*\."
# vLLM's and ModelOpt's names, and those of AutoFP8 and compressed-tensors' first versions.
_SUFFIXES: dict[str, ScaleKind] = {
    "k_scale": "key",
    "v_scale": "value",
    "kv_scale": "both",
    "k_proj.output_scale": "key",
    "v_proj.output_scale": "value",
}
_SCALE = re.compile(rf"{_LAYER}(?:[\w.]*\.)?(?P<suffix>{'|'.join(map(re.escape, _SUFFIXES))})$")
# What the writers store beside them, for kernels that quantize more than keys and values; zero
# points are 0.
_OTHER = re.compile(
    rf"{_LAYER}(?:[\w.]*\.)?"
    r"(?:q_scale|q_proj\.output_scale|prob_scale|prob_output_scale|[qkv]_zero_point)$"
)


@dataclass(frozen=True, slots=True)
class ScaleName:
    layer: int
    kind: ScaleKind


def scale_of(tensor_name: str) -> ScaleName | None:
    """What a tensor is the scale of; None: it is no scale of a KV cache."""
    match = _SCALE.search(tensor_name)
    return None if match is None else ScaleName(int(match["layer"]), _SUFFIXES[match["suffix"]])


def belongs_to_kv_cache(tensor_name: str) -> bool:
    """Whether a tensor is a scale of a KV cache, or one that comes with them; it is no weight."""
    return bool(_SCALE.search(tensor_name) or _OTHER.search(tensor_name))
