"""`modify_tensors` of architectures whose converter renames, splits or scales tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gguf import MODEL_ARCH

from support.gguf_files.recurrent import RECURRENT_TENSORS, tiled_columns

_TRANSPOSED = re.compile(r"\.(c_attn|c_proj|c_fc2?)\.weight$")
_DBRX_EXPERTS = re.compile(r"\.ffn\.experts\.mlp\.(w1|v1|w2)$")
_Config = dict[str, Any]
# Of one tensor; None: it is as that of other architectures.
_Parts = list[tuple[str, np.ndarray]] | None


def rows_form(
    config: _Config, architecture: MODEL_ARCH, name: str, shape: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How a tensor becomes rows [..., out, in], which are quantized: axes of a shape."""
    axes = tuple(range(len(shape)))
    if architecture in (MODEL_ARCH.GPT2, MODEL_ARCH.JAIS) and _TRANSPOSED.search(name):
        return axes[::-1], shape
    if heads := tiled_columns(config, architecture, name, shape):
        return (0, 2, 1, 3), heads
    if architecture is MODEL_ARCH.DBRX and (match := _DBRX_EXPERTS.search(name)):
        count = config["ffn_config"]["moe_num_experts"]
        stacked = (count, shape[0] // count, shape[1])
        return (0, 2, 1) if match[1] == "w2" else (0, 1, 2), stacked
    return axes, shape


def _bailing(config: _Config, name: str, data: np.ndarray) -> _Parts:
    """The head's columns are normalized."""
    if name == "lm_head.weight" and config["norm_head"]:
        return [(name, data / (np.linalg.norm(data, axis=0, keepdims=True) + 1e-7))]
    if match := re.fullmatch(r"model\.layers\.(\d+)\.attention\.dense\.weight", name):
        return [(f"blk.{match[1]}.attn_output.weight", data)]
    return None


def _ernie_moe(config: _Config, name: str, data: np.ndarray) -> _Parts:
    """Without modules that predict further tokens, and vectors as such."""
    if name.startswith("model.mtp_"):
        return []
    if name.endswith("e_score_correction_bias"):
        return [(name.replace("correction_bias", "correction.bias"), data.squeeze())]
    return None


def _expert_bias(config: _Config, name: str, data: np.ndarray) -> _Parts:
    return [(f"{name}.bias", data)] if name.endswith(".expert_bias") else None


def _dbrx(config: _Config, name: str, data: np.ndarray) -> _Parts:
    return [(f"{name}.weight", data)] if _DBRX_EXPERTS.search(name) else None


def _mimo2(config: _Config, name: str, data: np.ndarray) -> _Parts:
    if name.startswith("model.mtp."):
        return []
    return [(f"{name}.weight", data)] if name.endswith("attention_sink_bias") else None


def _deci(config: _Config, name: str, data: np.ndarray) -> _Parts:
    """Layers have other numbers of KV heads."""
    match = re.fullmatch(r"model\.layers\.(\d+)\.self_attn\.([qk])_proj\.weight", name)
    if match is None:
        return None
    heads = config["num_attention_heads"]
    if match[2] == "k":
        size = config["hidden_size"] // heads
        heads = data.shape[0] // size
    halves = data.reshape(heads, 2, -1, data.shape[-1])
    return [(name, halves.swapaxes(1, 2).reshape(data.shape))]


def _granite_moe(config: _Config, name: str, data: np.ndarray) -> _Parts:
    """Gate and up of the shared expert are one matrix."""
    match = re.fullmatch(r"model\.layers\.(\d+)\.shared_mlp\.input_linear\.weight", name)
    if match is None:
        return None
    halves = zip(("gate", "up"), np.split(data, 2), strict=True)
    return [(f"blk.{match[1]}.ffn_{part}_shexp.weight", half) for part, half in halves]


def _qwen3_vl_moe(config: _Config, name: str, data: np.ndarray) -> _Parts:
    """Stacks of experts are [in, out], with gates before ups."""
    match = re.fullmatch(r"(.*\.experts)\.(gate_up|down)_proj", name)
    if match is None:
        return None
    rows = data.swapaxes(1, 2)
    if match[2] == "down":
        return [(f"{match[1]}.down_proj.weight", rows)]
    halves = zip(("gate", "up"), np.split(rows, 2, axis=1), strict=True)
    return [(f"{match[1]}.{part}_proj.weight", half) for part, half in halves]


def _jais(config: _Config, name: str, data: np.ndarray) -> _Parts:
    """Factors on embeddings and logits are in the matrices."""
    if name.endswith("wte.weight"):
        return [(name, data * np.float32(config["mup_embeddings_scale"]))]
    if name == "lm_head.weight":
        scale = config["mup_output_alpha"] * config["mup_width_scale"]
        return [("output.weight", data * np.float32(scale))]
    return None


OTHER_TENSORS: Mapping[MODEL_ARCH, Callable[[_Config, str, np.ndarray], _Parts]] = {
    MODEL_ARCH.AFMOE: _expert_bias,
    MODEL_ARCH.BAILINGMOE2: _expert_bias,
    MODEL_ARCH.BAILINGMOE: _bailing,
    MODEL_ARCH.DBRX: _dbrx,
    MODEL_ARCH.DECI: _deci,
    MODEL_ARCH.ERNIE4_5_MOE: _ernie_moe,
    MODEL_ARCH.GRANITE_MOE: _granite_moe,
    MODEL_ARCH.JAIS: _jais,
    MODEL_ARCH.MIMO2: _mimo2,
    MODEL_ARCH.QWEN3VLMOE: _qwen3_vl_moe,
    **RECURRENT_TENSORS,
}
