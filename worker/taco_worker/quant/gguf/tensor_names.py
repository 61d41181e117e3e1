"""Hugging Face's names of the tensors in GGUF files, by architecture.

Source: `gguf/tensor_mapping.py` and the classes in `conversion/` of llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

LAYER, EXPERT = "{layer}", "{expert}"
_LAYER_TENSOR = re.compile(r"blk\.(\d{1,4})\.(.+)")
# Files of 2023 and early 2024 have a tensor for each expert.
_EXPERT_TENSOR = re.compile(r"(ffn_(?:gate|up|down))\.(\d{1,4})")


@dataclass(frozen=True, slots=True)
class NameTable:
    """The modules of an architecture.

    Attributes:
        layer: module of a layer, without its number.
        modules: names in Hugging Face's format, by the file's; of a layer's without "blk.N.".
        permuted: of Q and K, the rows of a head that are rotated together are neighbours.
        heads_by_kind: a fused QKV has all queries, then all keys, then all values.
        shifted_norms: weights of norms are stored as the sum of 1 and Hugging Face's.
        transposed: modules whose matrices Hugging Face stores as [in, out].
        joined_rows: modules whose rows are one matrix, in their order.
        joined_heads: keys and values of heads that are one matrix (`LatentHeads`).
    """

    layer: str
    modules: Mapping[str, str]
    permuted: bool = False
    heads_by_kind: bool = False
    shifted_norms: bool = False
    transposed: frozenset[str] = frozenset()
    joined_rows: tuple[str, ...] = ()
    joined_heads: tuple[str, ...] = ()

    def with_modules(self, *changed: Mapping[str, str], lacks: tuple[str, ...] = ()) -> NameTable:
        """With other names, and without the modules that the architecture lacks."""
        modules = dict(self.modules)
        for names in changed:
            modules.update(names)
        return replace(self, modules={k: v for k, v in modules.items() if k not in lacks})

    def layer_of(self, name: str) -> int | None:
        """The number of a tensor's layer; None: it is outside of the layers."""
        match = _LAYER_TENSOR.fullmatch(name)
        return None if match is None else int(match[1])

    def find(self, name: str) -> tuple[str, str, str] | None:
        """Of a tensor: its name in `modules`, Hugging Face's module, and the suffix.

        None: the architecture has no such tensor.
        """
        base, dot, suffix = name.rpartition(".")
        match = _LAYER_TENSOR.fullmatch(base)
        layer = "" if match is None else f"{self.layer}.{match[1]}"
        own = base if match is None else match[2]
        if expert := _EXPERT_TENSOR.fullmatch(own):
            stacked = self.modules.get(f"{expert[1]}_exps", "")
            module = stacked.replace(EXPERT, expert[2]) or None
        else:
            module = self.modules.get(own)
        if module is None or (LAYER in module) != (match is not None):
            return None
        return own, module.replace(LAYER, layer), dot + suffix


def _by_parts(prefix: str, **modules: str) -> dict[str, str]:
    return {name: f"{LAYER}.{prefix}{module}" for name, module in modules.items()}


_ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ATTENTION = _by_parts(
    "self_attn.", attn_q="q_proj", attn_k="k_proj", attn_v="v_proj", attn_output="o_proj"
)
_NORMS = _by_parts("", attn_norm="input_layernorm", ffn_norm="post_attention_layernorm")
_HEAD_NORMS = _by_parts("self_attn.", attn_q_norm="q_norm", attn_k_norm="k_norm")
_MLP = _by_parts("mlp.", ffn_gate="gate_proj", ffn_up="up_proj", ffn_down="down_proj")
_EXPERTS = _by_parts(
    "mlp.",
    ffn_gate_inp="gate",
    ffn_gate_exps=f"experts.{EXPERT}.gate_proj",
    ffn_up_exps=f"experts.{EXPERT}.up_proj",
    ffn_down_exps=f"experts.{EXPERT}.down_proj",
)
_SHARED_EXPERT = _by_parts(
    "mlp.",
    ffn_gate_inp_shexp="shared_expert_gate",
    ffn_gate_shexp="shared_expert.gate_proj",
    ffn_up_shexp="shared_expert.up_proj",
    ffn_down_shexp="shared_expert.down_proj",
)
_CORRECTED_EXPERTS = {
    **_EXPERTS,
    **_by_parts(
        "mlp.",
        exp_probs_b="gate.e_score_correction_bias",
        ffn_gate_shexp="shared_experts.gate_proj",
        ffn_up_shexp="shared_experts.up_proj",
        ffn_down_shexp="shared_experts.down_proj",
    ),
}
_MIXTRAL_EXPERTS = _by_parts(
    "block_sparse_moe.",
    ffn_gate_inp="gate",
    ffn_gate_exps=f"experts.{EXPERT}.w1",
    ffn_up_exps=f"experts.{EXPERT}.w3",
    ffn_down_exps=f"experts.{EXPERT}.w2",
)
_SANDWICH = _by_parts(
    "",
    post_attention_norm="post_attention_layernorm",
    ffn_norm="pre_feedforward_layernorm",
    post_ffw_norm="post_feedforward_layernorm",
)
_LLAMA = NameTable("model.layers", {**_ENDS, **_ATTENTION, **_NORMS, **_MLP})
_GEMMA = replace(_LLAMA, shifted_norms=True)
_BLOOM = NameTable(
    "h",
    {
        "token_embd": "word_embeddings",
        "output_norm": "ln_f",
        "output": "lm_head",
        **_by_parts("", attn_norm="input_layernorm", ffn_norm="post_attention_layernorm"),
        **_by_parts("self_attention.", attn_qkv="query_key_value", attn_output="dense"),
        **_by_parts("mlp.", ffn_up="dense_h_to_4h", ffn_down="dense_4h_to_h"),
    },
    heads_by_kind=True,
)
_NEOX = NameTable(
    "gpt_neox.layers",
    {
        "token_embd": "gpt_neox.embed_in",
        "output_norm": "gpt_neox.final_layer_norm",
        "output": "embed_out",
        **_by_parts("", attn_norm="input_layernorm", ffn_norm="post_attention_layernorm"),
        **_by_parts("attention.", attn_qkv="query_key_value", attn_output="dense"),
        **_by_parts("mlp.", ffn_up="dense_h_to_4h", ffn_down="dense_4h_to_h"),
    },
    heads_by_kind=True,
)
_QWEN = NameTable(
    "transformer.h",
    {
        "token_embd": "transformer.wte",
        "output_norm": "transformer.ln_f",
        "output": "lm_head",
        **_by_parts("", attn_norm="ln_1", ffn_norm="ln_2"),
        **_by_parts("attn.", attn_qkv="c_attn", attn_output="c_proj"),
        **_by_parts("mlp.", ffn_up="w1", ffn_gate="w2", ffn_down="c_proj"),
    },
)
_GPT2 = NameTable(
    "h",
    {
        "token_embd": "wte",
        "position_embd": "wpe",
        "output_norm": "ln_f",
        "output": "lm_head",
        **_by_parts("", attn_norm="ln_1", ffn_norm="ln_2"),
        **_by_parts("attn.", attn_qkv="c_attn", attn_output="c_proj"),
        **_by_parts("mlp.", ffn_up="c_fc", ffn_down="c_proj"),
    },
)
_TABLES = {
    "llama": replace(_LLAMA, permuted=True),
    "mistral3": replace(_LLAMA, permuted=True),
    "qwen2": _LLAMA,
    "qwen2vl": _LLAMA,
    "qwen2moe": _LLAMA.with_modules(_EXPERTS, _SHARED_EXPERT),
    "qwen3": _LLAMA.with_modules(_HEAD_NORMS),
    "qwen3moe": _LLAMA.with_modules(_HEAD_NORMS, _EXPERTS),
    "olmoe": _LLAMA.with_modules(_HEAD_NORMS, _EXPERTS),
    "olmo2": _LLAMA.with_modules(_HEAD_NORMS, _SANDWICH, lacks=("attn_norm", "ffn_norm")),
    "gemma": _GEMMA,
    "gemma2": _GEMMA.with_modules(_SANDWICH),
    "gemma3": _GEMMA.with_modules(_SANDWICH, _HEAD_NORMS),
    "phi2": _LLAMA.with_modules(
        {"output_norm": "model.final_layernorm"},
        _by_parts("self_attn.", attn_output="dense"),
        _by_parts("mlp.", ffn_up="fc1", ffn_down="fc2"),
        lacks=("ffn_norm", "ffn_gate"),
    ),
    "phi3": _LLAMA.with_modules(
        _by_parts("self_attn.", attn_qkv="qkv_proj"),
        _by_parts("mlp.", ffn_up="gate_up_proj"),
        lacks=("ffn_gate",),
    ),
    "falcon": _BLOOM,
    "bloom": _BLOOM.with_modules({"token_embd_norm": "word_embeddings_layernorm"}),
    "gpt2": replace(_GPT2, transposed=frozenset(("attn_qkv", "attn_output", "ffn_up", "ffn_down"))),
    "starcoder": _GPT2,
    "starcoder2": _LLAMA.with_modules(
        _by_parts("mlp.", ffn_up="c_fc", ffn_down="c_proj"), lacks=("ffn_gate",)
    ),
    "stablelm": _LLAMA.with_modules(
        _by_parts("self_attn.", attn_q_norm="q_layernorm", attn_k_norm="k_layernorm")
    ),
    "nemotron": replace(_LLAMA, shifted_norms=True).with_modules(lacks=("ffn_gate",)),
    "command-r": _LLAMA.with_modules(_HEAD_NORMS, lacks=("ffn_norm",)),
    "cohere2": _LLAMA.with_modules(lacks=("ffn_norm",)),
    "granite": replace(_LLAMA, permuted=True),
    "granitemoe": replace(_LLAMA, permuted=True).with_modules(
        _by_parts(
            "block_sparse_moe.",
            ffn_gate_inp="router.layer",
            ffn_gate_exps=f"experts.{EXPERT}.gate_proj",
            ffn_up_exps=f"experts.{EXPERT}.up_proj",
            ffn_down_exps=f"experts.{EXPERT}.down_proj",
        )
    ),
    "gpt-oss": _LLAMA.with_modules(
        _EXPERTS,
        _by_parts("", post_attention_norm="post_attention_layernorm"),
        _by_parts("", attn_sinks="self_attn.sinks", ffn_gate_inp="mlp.router"),
        lacks=("ffn_norm",),
    ),
    "glm4": _LLAMA.with_modules(
        _by_parts("", post_attention_norm="post_self_attn_layernorm"),
        _by_parts("", post_ffw_norm="post_mlp_layernorm", ffn_up="mlp.gate_up_proj"),
        lacks=("ffn_gate",),
    ),
    "smollm3": replace(_LLAMA, permuted=True),
    "internlm2": replace(_LLAMA, permuted=True),
    "baichuan": replace(
        _LLAMA, permuted=True, joined_rows=("attn_q", "attn_k", "attn_v")
    ).with_modules(_by_parts("self_attn.", attn_q="W_pack", attn_k="W_pack", attn_v="W_pack")),
    "chatglm": _LLAMA.with_modules(_by_parts("mlp.", ffn_up="gate_up_proj"), lacks=("ffn_gate",)),
    "glm4moe": _LLAMA.with_modules(
        _HEAD_NORMS,
        _CORRECTED_EXPERTS,
        _by_parts("", post_attention_norm="post_attention_layernorm"),
        lacks=("ffn_norm",),
    ),
    "deepseek2": replace(_LLAMA, joined_heads=("attn_k_b", "attn_v_b")).with_modules(
        _CORRECTED_EXPERTS,
        _by_parts("self_attn.", attn_q_a="q_a_proj", attn_q_a_norm="q_a_layernorm"),
        _by_parts("self_attn.", attn_q_b="q_b_proj", attn_kv_a_norm="kv_a_layernorm"),
        _by_parts("self_attn.", attn_kv_a_mqa="kv_a_proj_with_mqa", attn_kv_b="kv_b_proj"),
        _by_parts("self_attn.", attn_k_b="kv_b_proj", attn_v_b="kv_b_proj"),
        lacks=("attn_k", "attn_v"),
    ),
    "phimoe": _LLAMA.with_modules(_MIXTRAL_EXPERTS),
    "gptneox": _NEOX,
    "qwen": _QWEN,
    "xverse": replace(_LLAMA, permuted=True),
}
NAME_TABLES: Mapping[str, NameTable] = MappingProxyType(_TABLES)
MIXTRAL = _TABLES["llama"].with_modules(_MIXTRAL_EXPERTS)
# Falcon with one norm for attention and one for the MLP.
FALCON_TWO_NORMS = _BLOOM.with_modules(
    _by_parts("", attn_norm="ln_mlp", attn_norm_2="ln_attn"), lacks=("ffn_norm",)
)
# Names of these modules are those of tensors.
WITHOUT_SUFFIX = ("attn_sinks", "exp_probs_b")
# Tensors that are part of the configuration.
ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
