"""Hugging Face's names of the tensors in GGUF files, by architecture.

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
    SHARED_EXPERTS,
)
from taco_worker.quant.gguf.name_table import EXPERT, NameTable, by_parts
from taco_worker.quant.gguf.recurrent_names import RECURRENT_TABLES

# ERNIE's vector, which Hugging Face stores as [1, experts].
MOE_STATICS = "moe_statics.e_score_correction_bias"
_CORRECTED_EXPERTS = {
    **EXPERTS,
    **SHARED_EXPERTS,
    **by_parts("mlp.", exp_probs_b="gate.e_score_correction_bias"),
}
_MIXTRAL_EXPERTS = by_parts(
    "block_sparse_moe.",
    ffn_gate_inp="gate",
    ffn_gate_exps=f"experts.{EXPERT}.w1",
    ffn_up_exps=f"experts.{EXPERT}.w3",
    ffn_down_exps=f"experts.{EXPERT}.w2",
)
_LATENTS = {
    **by_parts("self_attn.", attn_q_a="q_a_proj", attn_q_a_norm="q_a_layernorm"),
    **by_parts("self_attn.", attn_q_b="q_b_proj", attn_kv_a_norm="kv_a_layernorm"),
    **by_parts("self_attn.", attn_kv_a_mqa="kv_a_proj_with_mqa", attn_kv_b="kv_b_proj"),
}
_SANDWICH = by_parts(
    "",
    post_attention_norm="post_attention_layernorm",
    ffn_norm="pre_feedforward_layernorm",
    post_ffw_norm="post_feedforward_layernorm",
)
_NORM_AFTER_ATTENTION = by_parts("", post_attention_norm="post_attention_layernorm")
_GEMMA = replace(LLAMA, shifted_norms=True)
_BLOOM = NameTable(
    "h",
    {
        "token_embd": "word_embeddings",
        "output_norm": "ln_f",
        "output": "lm_head",
        **by_parts("", attn_norm="input_layernorm", ffn_norm="post_attention_layernorm"),
        **by_parts("self_attention.", attn_qkv="query_key_value", attn_output="dense"),
        **by_parts("mlp.", ffn_up="dense_h_to_4h", ffn_down="dense_4h_to_h"),
    },
    heads_by_kind=True,
)
_NEOX = NameTable(
    "gpt_neox.layers",
    {
        "token_embd": "gpt_neox.embed_in",
        "output_norm": "gpt_neox.final_layer_norm",
        "output": "embed_out",
        **by_parts("", attn_norm="input_layernorm", ffn_norm="post_attention_layernorm"),
        **by_parts("attention.", attn_qkv="query_key_value", attn_output="dense"),
        **by_parts("mlp.", ffn_up="dense_h_to_4h", ffn_down="dense_4h_to_h"),
    },
    heads_by_kind=True,
)
_QWEN = NameTable(
    "transformer.h",
    {
        "token_embd": "transformer.wte",
        "output_norm": "transformer.ln_f",
        "output": "lm_head",
        **by_parts("", attn_norm="ln_1", ffn_norm="ln_2"),
        **by_parts("attn.", attn_qkv="c_attn", attn_output="c_proj"),
        **by_parts("mlp.", ffn_up="w1", ffn_gate="w2", ffn_down="c_proj"),
    },
)
_GPT2 = NameTable(
    "h",
    {
        "token_embd": "wte",
        "position_embd": "wpe",
        "output_norm": "ln_f",
        "output": "lm_head",
        **by_parts("", attn_norm="ln_1", ffn_norm="ln_2"),
        **by_parts("attn.", attn_qkv="c_attn", attn_output="c_proj"),
        **by_parts("mlp.", ffn_up="c_fc", ffn_down="c_proj"),
    },
)
_GPT2_TRANSPOSED = frozenset(("attn_qkv", "attn_output", "ffn_up", "ffn_down"))
_EXAONE = NameTable(
    "transformer.h",
    {
        "token_embd": "transformer.wte",
        "output_norm": "transformer.ln_f",
        "output": "lm_head",
        **by_parts("", attn_norm="ln_1", ffn_norm="ln_2"),
        **by_parts("attn.attention.", attn_q="q_proj", attn_k="k_proj", attn_v="v_proj"),
        **by_parts("attn.attention.", attn_output="out_proj"),
        **by_parts("mlp.", ffn_gate="c_fc_0", ffn_up="c_fc_1", ffn_down="c_proj"),
    },
)
_MPT = NameTable(
    "transformer.blocks",
    {
        "token_embd": "transformer.wte",
        "output_norm": "transformer.norm_f",
        "output": "lm_head",
        **by_parts("", attn_norm="norm_1", ffn_norm="norm_2"),
        **by_parts("attn.", attn_qkv="Wqkv", attn_output="out_proj"),
        **by_parts("ffn.", ffn_up="up_proj", ffn_down="down_proj"),
    },
)
_DBRX = NameTable(
    "transformer.blocks",
    {
        "token_embd": "transformer.wte",
        "output_norm": "transformer.norm_f",
        "output": "lm_head",
        **by_parts("norm_attn_norm.", attn_norm="norm_1", attn_output_norm="norm_2"),
        **by_parts("norm_attn_norm.attn.", attn_qkv="Wqkv", attn_output="out_proj"),
        **by_parts("ffn.", ffn_gate_inp="router.layer"),
        **by_parts("ffn.", ffn_gate_exps=f"experts.{EXPERT}.gate_proj"),
        **by_parts("ffn.", ffn_up_exps=f"experts.{EXPERT}.up_proj"),
        **by_parts("ffn.", ffn_down_exps=f"experts.{EXPERT}.down_proj"),
    },
)
_HUNYUAN = LLAMA.with_modules(
    by_parts("self_attn.", attn_q_norm="query_layernorm", attn_k_norm="key_layernorm")
)
_TABLES = {
    "llama": replace(LLAMA, permuted=True),
    "mistral3": replace(LLAMA, permuted=True),
    "qwen2": LLAMA,
    "qwen2vl": LLAMA,
    "qwen2moe": LLAMA.with_modules(EXPERTS, SHARED_EXPERT),
    "qwen3": LLAMA.with_modules(HEAD_NORMS),
    "qwen3moe": LLAMA.with_modules(HEAD_NORMS, EXPERTS),
    "olmoe": LLAMA.with_modules(HEAD_NORMS, EXPERTS),
    "olmo2": LLAMA.with_modules(HEAD_NORMS, _SANDWICH, lacks=("attn_norm", "ffn_norm")),
    "gemma": _GEMMA,
    "gemma2": _GEMMA.with_modules(_SANDWICH),
    "gemma3": _GEMMA.with_modules(_SANDWICH, HEAD_NORMS),
    "phi2": LLAMA.with_modules(
        {"output_norm": "model.final_layernorm"},
        by_parts("self_attn.", attn_output="dense"),
        by_parts("mlp.", ffn_up="fc1", ffn_down="fc2"),
        lacks=("ffn_norm", "ffn_gate"),
    ),
    "phi3": LLAMA.with_modules(
        by_parts("self_attn.", attn_qkv="qkv_proj"),
        by_parts("mlp.", ffn_up="gate_up_proj"),
        lacks=("ffn_gate",),
    ),
    "falcon": _BLOOM,
    "bloom": _BLOOM.with_modules({"token_embd_norm": "word_embeddings_layernorm"}),
    "gpt2": replace(_GPT2, transposed=_GPT2_TRANSPOSED),
    "starcoder": _GPT2,
    "starcoder2": LLAMA.with_modules(
        by_parts("mlp.", ffn_up="c_fc", ffn_down="c_proj"), lacks=("ffn_gate",)
    ),
    "stablelm": replace(LLAMA, norms_by_head=True).with_modules(
        by_parts("self_attn.", attn_q_norm="q_layernorm", attn_k_norm="k_layernorm")
    ),
    "nemotron": replace(LLAMA, shifted_norms=True).with_modules(lacks=("ffn_gate",)),
    "command-r": LLAMA.with_modules(HEAD_NORMS, lacks=("ffn_norm",)),
    "cohere2": LLAMA.with_modules(lacks=("ffn_norm",)),
    "granite": replace(LLAMA, permuted=True),
    "granitemoe": replace(
        LLAMA, permuted=True, joined_rows=("ffn_gate_shexp", "ffn_up_shexp")
    ).with_modules(GRANITE_EXPERTS),
    "gpt-oss": LLAMA.with_modules(
        EXPERTS,
        _NORM_AFTER_ATTENTION,
        by_parts("", attn_sinks="self_attn.sinks", ffn_gate_inp="mlp.router"),
        lacks=("ffn_norm",),
    ),
    "glm4": LLAMA.with_modules(
        by_parts("", post_attention_norm="post_self_attn_layernorm"),
        by_parts("", post_ffw_norm="post_mlp_layernorm", ffn_up="mlp.gate_up_proj"),
        lacks=("ffn_gate",),
    ),
    "smollm3": replace(LLAMA, permuted=True),
    "internlm2": replace(LLAMA, permuted=True),
    "baichuan": replace(
        LLAMA, permuted=True, joined_rows=("attn_q", "attn_k", "attn_v")
    ).with_modules(by_parts("self_attn.", attn_q="W_pack", attn_k="W_pack", attn_v="W_pack")),
    "chatglm": LLAMA.with_modules(by_parts("mlp.", ffn_up="gate_up_proj"), lacks=("ffn_gate",)),
    "glm4moe": LLAMA.with_modules(
        HEAD_NORMS,
        _CORRECTED_EXPERTS,
        _NORM_AFTER_ATTENTION,
        lacks=("ffn_norm",),
    ),
    "deepseek2": replace(LLAMA, joined_heads=("attn_k_b", "attn_v_b")).with_modules(
        _CORRECTED_EXPERTS,
        _LATENTS,
        by_parts("self_attn.", attn_k_b="kv_b_proj", attn_v_b="kv_b_proj"),
        lacks=("attn_k", "attn_v"),
    ),
    "phimoe": LLAMA.with_modules(_MIXTRAL_EXPERTS),
    "gptneox": _NEOX,
    "qwen": _QWEN,
    "xverse": replace(LLAMA, permuted=True),
    "ernie4_5": LLAMA,
    "seed_oss": LLAMA.with_modules(_NORM_AFTER_ATTENTION, lacks=("ffn_norm",)),
    "exaone4": LLAMA.with_modules(HEAD_NORMS, _SANDWICH, lacks=("attn_norm", "ffn_norm")),
    "exaone": _EXAONE,
    "hunyuan-dense": _HUNYUAN,
    "hunyuan-moe": _HUNYUAN.with_modules(
        EXPERTS,
        by_parts("mlp.", ffn_gate_inp="gate.wg", ffn_down_shexp="shared_mlp.down_proj"),
        by_parts("mlp.shared_mlp.", ffn_gate_shexp="gate_proj", ffn_up_shexp="up_proj"),
    ),
    "arcee": replace(LLAMA, permuted=True).with_modules(lacks=("ffn_gate",)),
    "minimax-m2": LLAMA.with_modules(
        HEAD_NORMS,
        _MIXTRAL_EXPERTS,
        by_parts("block_sparse_moe.", exp_probs_b="e_score_correction_bias"),
    ),
    "dots1": LLAMA.with_modules(HEAD_NORMS, _CORRECTED_EXPERTS),
    "ernie4_5-moe": LLAMA.with_modules(
        EXPERTS, SHARED_EXPERTS, by_parts("mlp.", exp_probs_b=MOE_STATICS)
    ),
    "olmo": replace(LLAMA, permuted=True).with_modules(
        lacks=("attn_norm", "ffn_norm", "output_norm")
    ),
    "qwen3vl": LLAMA.with_modules(HEAD_NORMS),
    "qwen3vlmoe": LLAMA.with_modules(HEAD_NORMS, EXPERTS),
    "minicpm": replace(LLAMA, permuted=True),
    "minicpm3": LLAMA.with_modules(_LATENTS, lacks=("attn_q", "attn_k", "attn_v")),
    "orion": LLAMA,
    "mpt": _MPT,
    "deepseek": replace(LLAMA, permuted=True).with_modules(EXPERTS, SHARED_EXPERTS),
    "jais": replace(_GPT2, transposed=_GPT2_TRANSPOSED | {"ffn_gate"}).with_modules(
        by_parts("mlp.", ffn_gate="c_fc2")
    ),
    "jais2": LLAMA.with_modules(lacks=("ffn_gate",)),
    "afmoe": LLAMA.with_modules(
        HEAD_NORMS,
        EXPERTS,
        SHARED_EXPERTS,
        _NORM_AFTER_ATTENTION,
        by_parts("", ffn_norm="pre_mlp_layernorm", post_ffw_norm="post_mlp_layernorm"),
        by_parts("", attn_gate="self_attn.gate_proj"),
        by_parts("mlp.", ffn_gate_inp="router.gate", exp_probs_b="expert_bias"),
    ),
    "bailingmoe2": LLAMA.with_modules(
        {"token_embd": "model.word_embeddings"},
        EXPERTS,
        SHARED_EXPERTS,
        by_parts("attention.", attn_qkv="query_key_value", attn_output="dense"),
        by_parts("attention.", attn_q_norm="query_layernorm", attn_k_norm="key_layernorm"),
        by_parts("mlp.", exp_probs_b="gate.expert_bias"),
        lacks=("attn_q", "attn_k", "attn_v"),
    ),
    "dbrx": _DBRX,
    "mimo2": LLAMA.with_modules(
        _CORRECTED_EXPERTS, by_parts("self_attn.", attn_sinks="attention_sink_bias")
    ),
    "deci": replace(LLAMA, permuted=True),
    "bailingmoe": replace(
        LLAMA, permuted=True, joined_rows=("attn_q", "attn_k", "attn_v")
    ).with_modules(
        {"token_embd": "model.word_embeddings"},
        EXPERTS,
        SHARED_EXPERTS,
        by_parts("attention.", attn_q="query_key_value", attn_k="query_key_value"),
        by_parts("attention.", attn_v="query_key_value", attn_output="dense"),
    ),
}
NAME_TABLES: Mapping[str, NameTable] = MappingProxyType({**_TABLES, **RECURRENT_TABLES})
MIXTRAL = _TABLES["llama"].with_modules(_MIXTRAL_EXPERTS)
# Falcon with one norm for attention and one for the MLP.
FALCON_TWO_NORMS = _BLOOM.with_modules(
    by_parts("", attn_norm="ln_mlp", attn_norm_2="ln_attn"), lacks=("ffn_norm",)
)
# Names of these modules are those of tensors.
WITHOUT_SUFFIX = ("attn_sinks", "exp_probs_b", "ssm_a", "ssm_d", "ssm_dt")
# Tensors that are part of the configuration.
ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
