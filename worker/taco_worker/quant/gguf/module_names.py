"""Names of modules that many architectures share, by the names that GGUF files give them.

Source: `gguf/tensor_mapping.py` of llama.cpp.
"""

from __future__ import annotations

from taco_worker.quant.gguf.name_table import EXPERT, NameTable, by_parts

ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
ATTENTION = by_parts(
    "self_attn.", attn_q="q_proj", attn_k="k_proj", attn_v="v_proj", attn_output="o_proj"
)
NORMS = by_parts("", attn_norm="input_layernorm", ffn_norm="post_attention_layernorm")
HEAD_NORMS = by_parts("self_attn.", attn_q_norm="q_norm", attn_k_norm="k_norm")
MLP = by_parts("mlp.", ffn_gate="gate_proj", ffn_up="up_proj", ffn_down="down_proj")
EXPERTS = by_parts(
    "mlp.",
    ffn_gate_inp="gate",
    ffn_gate_exps=f"experts.{EXPERT}.gate_proj",
    ffn_up_exps=f"experts.{EXPERT}.up_proj",
    ffn_down_exps=f"experts.{EXPERT}.down_proj",
)
SHARED_EXPERT = by_parts(
    "mlp.",
    ffn_gate_inp_shexp="shared_expert_gate",
    ffn_gate_shexp="shared_expert.gate_proj",
    ffn_up_shexp="shared_expert.up_proj",
    ffn_down_shexp="shared_expert.down_proj",
)
SHARED_EXPERTS = by_parts(
    "mlp.",
    ffn_gate_shexp="shared_experts.gate_proj",
    ffn_up_shexp="shared_experts.up_proj",
    ffn_down_shexp="shared_experts.down_proj",
)
GRANITE_EXPERTS = {
    **by_parts(
        "block_sparse_moe.",
        ffn_gate_inp="router.layer",
        ffn_gate_exps=f"experts.{EXPERT}.gate_proj",
        ffn_up_exps=f"experts.{EXPERT}.up_proj",
        ffn_down_exps=f"experts.{EXPERT}.down_proj",
    ),
    **by_parts(
        "shared_mlp.",
        ffn_gate_shexp="input_linear",
        ffn_up_shexp="input_linear",
        ffn_down_shexp="output_linear",
    ),
}
LLAMA = NameTable("model.layers", {**ENDS, **ATTENTION, **NORMS, **MLP})
