"""Architectures with recurrent layers, as the classes in llama.cpp's `conversion/` write them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import gguf
import numpy as np
from gguf import MODEL_ARCH, GGUFWriter

_Config = dict[str, Any]
_Parts = list[tuple[str, np.ndarray]] | None
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.*)")
_PREDICTION = {
    "fc": "nextn.eh_proj",
    "pre_fc_norm_embedding": "nextn.enorm",
    "pre_fc_norm_hidden": "nextn.hnorm",
    "norm": "nextn.shared_head_norm",
}

RECURRENT_ARCHITECTURES: Mapping[str, MODEL_ARCH] = {
    "FalconH1ForCausalLM": MODEL_ARCH.FALCON_H1,
    "GraniteMoeHybridForCausalLM": MODEL_ARCH.GRANITE_HYBRID,
    "Lfm2ForCausalLM": MODEL_ARCH.LFM2,
    "Lfm2MoeForCausalLM": MODEL_ARCH.LFM2MOE,
    "Qwen3NextForCausalLM": MODEL_ARCH.QWEN3NEXT,
    "Qwen3_5ForCausalLM": MODEL_ARCH.QWEN35,
    "Qwen3_5ForConditionalGeneration": MODEL_ARCH.QWEN35,
    "Qwen3_5MoeForCausalLM": MODEL_ARCH.QWEN35MOE,
    "Qwen3_5MoeForConditionalGeneration": MODEL_ARCH.QWEN35MOE,
}
_TILED = (MODEL_ARCH.QWEN35, MODEL_ARCH.QWEN35MOE)


def tiled_columns(
    config: _Config, architecture: MODEL_ARCH, name: str, shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    """The axes [rows, key heads, value heads of each, columns] of a matrix with tiled columns.

    None: its columns are in the order of the checkpoint.
    """
    if architecture not in _TILED or not name.endswith(".linear_attn.out_proj.weight"):
        return None
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    return (shape[0], keys, values // keys, config["linear_value_head_dim"])


def _add_delta_net(writer: GGUFWriter, config: _Config) -> None:
    """`Qwen3NextModel.set_gguf_parameters`, and that of what it inherits from."""
    num_heads = config["linear_num_value_heads"]
    rope = {**config, **(config.get("rope_parameters") or {})}
    writer.add_nextn_predict_layers(1)
    writer.add_ssm_conv_kernel(config.get("linear_conv_kernel_dim", 4))
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(num_heads)
    writer.add_ssm_inner_size(config["linear_value_head_dim"] * num_heads)
    if types := config.get("layer_types"):
        key = f"{writer.arch}.attention.recurrent_layers"
        writer.add_array(key, [one == "linear_attention" for one in types] + [False])
    writer.add_full_attention_interval(config.get("full_attention_interval", 4))
    partial = rope.get("partial_rotary_factor", 0.25)
    writer.add_rope_dimension_count(int(config["head_dim"] * partial))
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])


def _add_short_convolutions(writer: GGUFWriter, config: _Config) -> None:
    """`LFM2Model.set_gguf_parameters`, and the same of `LFM2MoeModel`."""
    layers = range(config["num_hidden_layers"])
    attention: list[int] = config.get("full_attn_idxs") or []
    if types := config.get("layer_types"):
        attention = [layer for layer in layers if types[layer] == "full_attention"]
    kv_heads = config["num_key_value_heads"]
    writer.add_head_count_kv([kv_heads if layer in attention else 0 for layer in layers])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_shortconv_l_cache(config["conv_L_cache"])
    writer.add_layer_norm_rms_eps(config["norm_eps"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_leading_dense_block_count(config["num_dense_layers"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        return
    size = config.get("block_ff_dim") or config["intermediate_size"]
    if config["block_auto_adjust_ff_dim"]:
        size = int(config["block_ffn_dim_multiplier"] * int(2 * size / 3))
        multiple = config["block_multiple_of"]
        size = multiple * ((size + multiple - 1) // multiple)
    writer.add_feed_forward_length(size)


def _add_mamba(writer: GGUFWriter, config: _Config, size: int) -> None:
    writer.add_ssm_conv_kernel(config["mamba_d_conv"])
    writer.add_ssm_state_size(config["mamba_d_state"])
    writer.add_ssm_group_count(config["mamba_n_groups"])
    writer.add_ssm_inner_size(size)
    writer.add_ssm_time_step_rank(config["mamba_n_heads"])


def _add_granite_4(writer: GGUFWriter, config: _Config) -> None:
    """`GraniteHybridModel.set_gguf_parameters`."""
    writer.add_attention_scale(config["attention_multiplier"])
    writer.add_embedding_scale(config["embedding_multiplier"])
    writer.add_residual_scale(config["residual_multiplier"])
    writer.add_logit_scale(config["logits_scaling"])
    writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])
    _add_mamba(writer, config, config["mamba_expand"] * config["hidden_size"])
    kv_heads = config["num_key_value_heads"]
    types = config["layer_types"]
    writer.add_head_count_kv([kv_heads if one == "attention" else 0 for one in types])
    writer.add_rope_scaling_finetuned(False)
    writer.add_context_length(2**20)


def _add_falcon_h1(writer: GGUFWriter, config: _Config) -> None:
    writer.add_vocab_size(config["vocab_size"])
    _add_mamba(writer, config, config["mamba_d_ssm"])


RECURRENT_PARAMETERS: Mapping[MODEL_ARCH, Callable[[GGUFWriter, _Config], None]] = {
    MODEL_ARCH.FALCON_H1: _add_falcon_h1,
    MODEL_ARCH.GRANITE_HYBRID: _add_granite_4,
    MODEL_ARCH.LFM2: _add_short_convolutions,
    MODEL_ARCH.LFM2MOE: _add_short_convolutions,
    MODEL_ARCH.QWEN3NEXT: _add_delta_net,
    MODEL_ARCH.QWEN35: _add_delta_net,
    MODEL_ARCH.QWEN35MOE: _add_delta_net,
}


def _qwen_3_next(config: _Config, name: str, data: np.ndarray) -> _Parts:
    """`Qwen3NextModel.modify_tensors`; of projections, all queries, then all keys and values."""
    keys, key_dim = config["linear_num_key_heads"], config["linear_key_head_dim"]
    match = _LAYER.fullmatch(name)
    if match and match[2] == "linear_attn.in_proj_qkvz.weight":
        size = config["linear_num_value_heads"] // keys * config["linear_value_head_dim"]
        heads = data.reshape(keys, 2 * key_dim + 2 * size, data.shape[-1])
        parts = np.split(heads, [key_dim, 2 * key_dim, 2 * key_dim + size], axis=1)
        *qkv, gate = (part.reshape(-1, data.shape[-1]) for part in parts)
        base = f"blk.{match[1]}.attn"
        return [(f"{base}_qkv.weight", np.concatenate(qkv)), (f"{base}_gate.weight", gate)]
    return _delta_net(config, name, data)


def _qwen_3_5(config: _Config, name: str, data: np.ndarray) -> _Parts:
    """`_LinearAttentionVReorderBase.modify_tensors`; `tiled_columns` is a part of it."""
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    start = 2 * keys * config["linear_key_head_dim"]
    if re.search(r"\.(in_proj_qkv|conv1d)\.weight$", name):
        tiled = _tiled_rows(data[start:], keys, values // keys)
        return _delta_net(config, name, np.concatenate([data[:start], tiled]))
    if re.search(r"\.linear_attn\.(in_proj_[zba]\.weight|A_log|dt_bias)$", name):
        data = _tiled_rows(data, keys, values // keys)
    return _delta_net(config, name, data)


def _tiled_rows(rows: np.ndarray, keys: int, per_key: int) -> np.ndarray:
    heads = rows.reshape(keys, per_key, len(rows) // keys // per_key, *rows.shape[1:])
    return heads.swapaxes(0, 1).reshape(rows.shape)


def _delta_net(config: _Config, name: str, data: np.ndarray) -> _Parts:
    if name.startswith("mtp."):
        module, _, suffix = name.removeprefix("mtp.").rpartition(".")
        own = f"blk.{config['num_hidden_layers']}.{_PREDICTION[module]}.{suffix}"
        return [(own, data)]
    if match := re.fullmatch(r"(.*\.experts)\.(gate_up|down)_proj", name):
        if match[2] == "down":
            return [(f"{name}.weight", data)]
        halves = zip(("gate", "up"), np.split(data, 2, axis=1), strict=True)
        return [(f"{match[1]}.{part}_proj.weight", half) for part, half in halves]
    if name.endswith(".A_log"):
        return [(name, -np.exp(data))]
    if name.endswith(".dt_bias"):
        return [(name.replace(".dt_bias", ".dt_proj.bias"), data)]
    if name.endswith(".conv1d.weight"):
        return [(name, data.squeeze())]
    if name.endswith("norm.weight") and not name.endswith(".linear_attn.norm.weight"):
        return [(name, data + 1)]
    return None if ".experts." in name else [(name, data)]


def _lfm_2(config: _Config, name: str, data: np.ndarray) -> _Parts:
    if name.endswith(".conv.conv.weight"):
        return [(name, data.squeeze(1))]
    if name.endswith(".expert_bias"):
        return [(f"{name}.bias", data)]
    if match := re.fullmatch(r"model(\..*\.experts)\.(gate_up|down)_proj", name):
        base = match[1].removeprefix(".")
        if match[2] == "down":
            return [(f"{base}.w2.weight", data)]
        halves = zip(("w1", "w3"), np.split(data, 2, axis=1), strict=True)
        return [(f"{base}.{part}.weight", half) for part, half in halves]
    return None


def _mamba(config: _Config, name: str, data: np.ndarray) -> _Parts:
    """`Mamba2Model.modify_tensors`."""
    match name.partition(".mamba.")[2]:
        case "A_log":
            return [(name, -np.exp(data[:, None]))]
        case "D":
            return [(name, data[:, None])]
        case "dt_bias":
            return [(name.replace(".dt_bias", ".dt_proj.bias"), data)]
        case "conv1d.weight":
            return [(name, data.squeeze())]
        case "norm.weight":
            return [(name, data.reshape(config["mamba_n_groups"], -1))]
    return None


def _granite_4(config: _Config, name: str, data: np.ndarray) -> _Parts:
    """The shared MLP is that of all tokens in models without experts."""
    match = _LAYER.fullmatch(name)
    if match is None or not match[2].startswith("shared_mlp."):
        return _mamba(config, name, data)
    suffix = "_shexp" if config["num_local_experts"] else ""
    base = f"blk.{match[1]}.ffn_"
    if match[2] == "shared_mlp.output_linear.weight":
        return [(f"{base}down{suffix}.weight", data)]
    halves = zip(("gate", "up"), np.split(data, 2), strict=True)
    return [(f"{base}{part}{suffix}.weight", half) for part, half in halves]


def _falcon_h1(config: _Config, name: str, data: np.ndarray) -> _Parts:
    """`FalconH1Model.modify_tensors`: the factors are in the matrices."""
    ((name, data),) = _mamba(config, name, data) or [(name, data)]
    attention = config["attention_in_multiplier"]
    mlp = config["mlp_multipliers"]
    factors = {
        "down_proj": mlp[1],
        "gate_proj": mlp[0],
        "k_proj": config["key_multiplier"] * attention,
        "q_proj": attention,
        "v_proj": attention,
        "o_proj": config["attention_out_multiplier"],
        "out_proj": config["ssm_out_multiplier"],
        "in_proj": config["ssm_in_multiplier"],
        "lm_head": config["lm_head_multiplier"],
        "embed_tokens": config["embedding_multiplier"],
    }
    factor = next((one for part, one in factors.items() if part in name), 1.0)
    if factor != 1.0:
        data = data * np.float32(factor)
    if ".mamba.in_proj." in name and {*config["ssm_multipliers"]} != {1.0}:
        size, keys = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
        parts = [size, 2 * size, 2 * size + keys, 2 * size + 2 * keys]
        scaled = zip(np.split(data, parts), config["ssm_multipliers"], strict=True)
        data = np.concatenate([part * np.float32(one) for part, one in scaled])
    return [(name, data)]


RECURRENT_TENSORS: Mapping[MODEL_ARCH, Callable[[_Config, str, np.ndarray], _Parts]] = {
    MODEL_ARCH.FALCON_H1: _falcon_h1,
    MODEL_ARCH.GRANITE_HYBRID: _granite_4,
    MODEL_ARCH.LFM2: _lfm_2,
    MODEL_ARCH.LFM2MOE: _lfm_2,
    MODEL_ARCH.QWEN3NEXT: _qwen_3_next,
    MODEL_ARCH.QWEN35: _qwen_3_5,
    MODEL_ARCH.QWEN35MOE: _qwen_3_5,
}
