"""Hugging Face's names of the tensors of architectures with recurrent layers.

Source: `gguf/tensor_mapping.py` and the classes in `conversion/` of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from taco_worker.quant.gguf.module_names import (
    EXPERTS,
    GRANITE_EXPERTS,
    HEAD_NORMS,
    LLAMA,
    SHARED_EXPERT,
)
from taco_worker.quant.gguf.name_table import EXPERT, NameTable, by_parts

_DELTA = {
    **by_parts("linear_attn.", attn_qkv="in_proj_qkv", attn_gate="in_proj_z", ssm_out="out_proj"),
    **by_parts("linear_attn.", ssm_beta="in_proj_b", ssm_alpha="in_proj_a", ssm_conv1d="conv1d"),
    **by_parts("linear_attn.", ssm_a="A_log", ssm_dt="dt_bias", ssm_norm="norm"),
}
_MAMBA = {
    **by_parts("mamba.", ssm_in="in_proj", ssm_out="out_proj", ssm_conv1d="conv1d"),
    **by_parts("mamba.", ssm_a="A_log", ssm_d="D", ssm_dt="dt_bias", ssm_norm="norm"),
}
_QWEN_3_5 = replace(LLAMA, shifted_norms=True, value_heads="tiled").with_modules(
    HEAD_NORMS,
    _DELTA,
    by_parts("", post_attention_norm="post_attention_layernorm"),
    lacks=("ffn_norm",),
)
_QWEN_3_5_MOE = _QWEN_3_5.with_modules(
    EXPERTS, SHARED_EXPERT, lacks=("ffn_gate", "ffn_up", "ffn_down")
)
_LFM_2 = LLAMA.with_modules(
    {"token_embd_norm": "model.embedding_norm"},  # llama.cpp keeps this name for the last norm
    by_parts("", attn_norm="operator_norm", ffn_norm="ffn_norm"),
    by_parts("self_attn.", attn_output="out_proj"),
    by_parts("self_attn.", attn_q_norm="q_layernorm", attn_k_norm="k_layernorm"),
    by_parts("feed_forward.", ffn_gate="w1", ffn_up="w3", ffn_down="w2"),
    by_parts("conv.", **{f"shortconv.{one}": one for one in ("conv", "in_proj", "out_proj")}),
    lacks=("output_norm",),
)
_GRANITE_4 = replace(LLAMA, permuted=True).with_modules(_MAMBA)
# Granite 4 without experts.
DENSE_GRANITE_4 = replace(_GRANITE_4, joined_rows=("ffn_gate", "ffn_up")).with_modules(
    by_parts("shared_mlp.", ffn_gate="input_linear", ffn_up="input_linear"),
    by_parts("shared_mlp.", ffn_down="output_linear"),
)
_TABLES = {
    "qwen35": _QWEN_3_5,
    "qwen35moe": _QWEN_3_5_MOE,
    # Like Qwen3.5 MoE, files have queries, keys and values apart from gates.
    "qwen3next": replace(_QWEN_3_5_MOE, value_heads="by_key"),
    "lfm2": _LFM_2,
    "lfm2moe": _LFM_2.with_modules(
        by_parts(
            "feed_forward.",
            ffn_gate_inp="gate",
            ffn_gate_exps=f"experts.{EXPERT}.w1",
            ffn_up_exps=f"experts.{EXPERT}.w3",
            ffn_down_exps=f"experts.{EXPERT}.w2",
            exp_probs_b="expert_bias",
        )
    ),
    "granitehybrid": replace(
        _GRANITE_4, joined_rows=("ffn_gate_shexp", "ffn_up_shexp")
    ).with_modules(GRANITE_EXPERTS),
    "falcon-h1": LLAMA.with_modules(
        {"output_norm": "model.final_layernorm"},
        _MAMBA,
        by_parts("", ffn_norm="pre_ff_layernorm"),
        by_parts("feed_forward.", ffn_gate="gate_proj", ffn_up="up_proj", ffn_down="down_proj"),
    ),
}
RECURRENT_TABLES: Mapping[str, NameTable] = MappingProxyType(_TABLES)
