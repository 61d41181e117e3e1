"""DeepSeek MoE, Ling and Ring, which transformers lacks, computed by Qwen2Moe and Glm4Moe.

Sources: modeling_deepseek.py of deepseek-ai/deepseek-moe-16b-base, and modeling_bailing_moe.py and
modeling_bailing_moe_v2.py of github.com/inclusionAI/Ling and Ling-V2.
"""

from __future__ import annotations

from typing import Any

import torch

from support.architectures.latent import prediction_layers
from support.architectures.llama import LLAMA, SIZE_FIELDS
from support.architectures.relaid import Config, Relaid, Shapes
from support.architectures.variant import REMOVED, Tensors, Variant

_EXPERT = ("gate_proj", "up_proj", "down_proj")
_DEEPSEEK_MOE: dict[str, Any] = {
    "architectures": ["DeepseekForCausalLM"],
    "model_type": "deepseek",
    **LLAMA,
    "num_hidden_layers": 3,
    "attention_bias": False,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 40,
    "moe_layer_freq": 1,
    "n_routed_experts": 5,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_experts_per_tok": 2,
    "pretraining_tp": 1,
    "rope_scaling": None,
    "scoring_func": "softmax",
}
_LING: dict[str, Any] = {
    "architectures": ["BailingMoeForCausalLM"],
    "model_type": "bailing_moe",
    **LLAMA,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "head_dim": 20,
    "moe_intermediate_size": 40,
    "norm_head": True,
    "norm_topk_prob": True,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "num_shared_experts": 2,
    "rope_scaling": None,
    "use_bias": False,
    "use_qkv_bias": False,
    "use_sliding_window": False,
}
_LING_2: dict[str, Any] = {
    **_LING,
    "architectures": ["BailingMoeV2ForCausalLM"],
    "model_type": "bailing_moe_v2",
    "moe_router_enable_expert_bias": True,
    "n_group": 4,
    "norm_head": False,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "num_nextn_predict_layers": 1,
    "partial_rotary_factor": 0.5,
    "routed_scaling_factor": 2.5,
    "score_function": "sigmoid",
    "topk_group": 2,
    "use_qk_norm": True,
    "use_rmsnorm": True,
}


def _mlp_shapes(module: str, size: int, hidden: int) -> Shapes:
    sizes = ((size, hidden), (size, hidden), (hidden, size))
    return {f"{module}.{name}.weight": one for name, one in zip(_EXPERT, sizes, strict=True)}


def _has_experts(config: Config, layer: int) -> bool:
    first, step = config.get("first_k_dense_replace", 0), config.get("moe_layer_freq", 1)
    return layer >= first and layer % step == 0


def _num_shared(config: Config) -> int:
    return config.get("n_shared_experts") or config.get("num_shared_experts") or 0


def _num_experts(config: Config) -> int:
    return config["n_routed_experts" if "n_routed_experts" in config else "num_experts"]


def _head_dim(config: Config) -> int:
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def _common_shapes(config: Config, embedding: str) -> Shapes:
    """All tensors but those of attention."""
    hidden, size = config["hidden_size"], config["moe_intermediate_size"]
    vocabulary = (config["vocab_size"], hidden)
    shapes: Shapes = {f"model.{embedding}.weight": vocabulary, "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = vocabulary
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{layer}.{norm}.weight"] = (hidden,)
        if not _has_experts(config, index):
            shapes |= _mlp_shapes(f"{layer}.mlp", config["intermediate_size"], hidden)
            continue
        shapes[f"{layer}.mlp.gate.weight"] = (_num_experts(config), hidden)
        for expert in range(_num_experts(config)):
            shapes |= _mlp_shapes(f"{layer}.mlp.experts.{expert}", size, hidden)
        if shared := _num_shared(config):
            shapes |= _mlp_shapes(f"{layer}.mlp.shared_experts", shared * size, hidden)
    return shapes


def _deepseek_shapes(config: Config) -> Shapes:
    hidden, dim = config["hidden_size"], _head_dim(config)
    query, key = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes = _common_shapes(config, "embed_tokens")
    for index in range(config["num_hidden_layers"]):
        attention = f"model.layers.{index}.self_attn"
        for name, size in (("q", query), ("k", key), ("v", key)):
            shapes[f"{attention}.{name}_proj.weight"] = (size, hidden)
        shapes[f"{attention}.o_proj.weight"] = (hidden, query)
    return shapes


def _ling_shapes(config: Config) -> Shapes:
    hidden, dim = config["hidden_size"], _head_dim(config)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    size = (heads + 2 * kv_heads) * dim
    shapes = _common_shapes(config, "word_embeddings")
    for index in range(config["num_hidden_layers"]):
        attention = f"model.layers.{index}.attention"
        shapes[f"{attention}.query_key_value.weight"] = (size, hidden)
        shapes[f"{attention}.dense.weight"] = (hidden, heads * dim)
        if config.get("use_qkv_bias"):
            shapes[f"{attention}.query_key_value.bias"] = (size,)
        if config.get("use_qk_norm", "score_function" in config):
            shapes[f"{attention}.query_layernorm.weight"] = (dim,)
            shapes[f"{attention}.key_layernorm.weight"] = (dim,)
        is_sigmoid = "score_function" in config and _has_experts(config, index)
        if is_sigmoid:
            shapes[f"model.layers.{index}.mlp.gate.expert_bias"] = (_num_experts(config),)
    if config.get("num_nextn_predict_layers"):
        shapes |= {name: tuple(one.shape) for name, one in prediction_layers(config).items()}
    return shapes


_SAME = ("architectures", "model_type", "torch_dtype", "moe_shared_expert_intermediate_size")


def _same_fields(config: Config) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in _SAME}


def _as_qwen2_moe(config: Config, max_model_len: int | None) -> dict[str, Any]:
    layers = range(config["num_hidden_layers"])
    top_k, shared = config["num_experts_per_tok"], _num_shared(config)
    return {
        "rms_norm_eps": 1e-5 if "num_experts" in config else 1e-6,
        **_same_fields(config),
        "head_dim": _head_dim(config),
        "mlp_only_layers": [layer for layer in layers if not _has_experts(config, layer)],
        "norm_topk_prob": top_k > 1 and config.get("norm_topk_prob", "num_experts" in config),
        "num_experts": _num_experts(config),
        "qkv_bias": config.get("use_qkv_bias", False),
        "shared_expert_intermediate_size": max(shared, 1) * config["moe_intermediate_size"],
    }


def _with_qwen2_moe_gates(config: Config, weights: Tensors) -> Tensors:
    """Shared experts with a gate that is always 0.5, and so with twice the down projection."""
    hidden, size = config["hidden_size"], config["moe_intermediate_size"]
    renamed = {
        name.replace(".shared_experts.", ".shared_expert."): value * 2
        if name.endswith(".shared_experts.down_proj.weight")
        else value
        for name, value in weights.items()
    }
    for layer in range(config["num_hidden_layers"]):
        if not _has_experts(config, layer):
            continue
        mlp = f"model.layers.{layer}.mlp"
        renamed[f"{mlp}.shared_expert_gate.weight"] = torch.zeros(1, hidden)
        if not _num_shared(config):
            shapes = _mlp_shapes(f"{mlp}.shared_expert", size, hidden)
            renamed |= {name: torch.zeros(shape) for name, shape in shapes.items()}
    return renamed


def _as_glm4_moe(config: Config, max_model_len: int | None) -> dict[str, Any]:
    return {
        "rope_theta": 600_000.0,
        "rms_norm_eps": 1e-6,
        "routed_scaling_factor": 1.0,
        "use_qk_norm": True,
        "partial_rotary_factor": 1.0,
        **_same_fields(config),
        "attention_bias": config.get("use_qkv_bias", False),
        "head_dim": _head_dim(config),
        "n_routed_experts": _num_experts(config),
        "n_shared_experts": _num_shared(config),
        "norm_topk_prob": config["num_experts_per_tok"] > 1,
    }


_NAMES = {
    ".attention.dense.": ".self_attn.o_proj.",
    ".attention.query_layernorm.": ".self_attn.q_norm.",
    ".attention.key_layernorm.": ".self_attn.k_norm.",
    ".gate.expert_bias": ".gate.e_score_correction_bias",
    "model.word_embeddings.": "model.embed_tokens.",
}


def _split_and_renamed(config: Config, tensors: Tensors) -> Tensors:
    """Ling's tensors by Llama's names, without those of layers that predict further tokens."""
    dim, kv_heads = _head_dim(config), config["num_key_value_heads"]
    sizes = [count * dim for count in (config["num_attention_heads"], kv_heads, kv_heads)]
    weights: Tensors = {}
    for name, tensor in tensors.items():
        if name.startswith(f"model.layers.{config['num_hidden_layers']}."):
            continue
        if ".query_key_value." in name:
            for letter, part in zip("qkv", tensor.split(sizes), strict=True):
                renamed = f".self_attn.{letter}_proj."
                weights[name.replace(".attention.query_key_value.", renamed)] = part
            continue
        for theirs, ours in _NAMES.items():
            name = name.replace(theirs, ours)
        weights[name] = tensor
    if config.get("norm_head"):
        head = weights["lm_head.weight"]
        weights["lm_head.weight"] = head / (head.norm(dim=0, keepdim=True) + 1e-7)
    return weights


def _ling_weights(config: Config, tensors: Tensors) -> Tensors:
    return _with_qwen2_moe_gates(config, _split_and_renamed(config, tensors))


_FIELDS: tuple[tuple[str, Any], ...] = (
    *SIZE_FIELDS,
    ("num_key_value_heads", 1),
    ("hidden_act", "gelu"),
    ("rms_norm_eps", 0.3),
    ("rms_norm_eps", REMOVED),
    ("rope_theta", 700.0),
    ("rope_theta", REMOVED),
    ("rope_scaling", {"type": "linear", "factor": 4.0}),
    ("moe_intermediate_size", 48),
    ("num_experts_per_tok", 1),
    ("num_experts_per_tok", 3),
    ("first_k_dense_replace", 0),
    ("first_k_dense_replace", 2),
    ("first_k_dense_replace", 3),
)

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "deepseek-moe-like",
        _DEEPSEEK_MOE,
        Relaid("Qwen2MoeForCausalLM", _deepseek_shapes, _as_qwen2_moe, _with_qwen2_moe_gates),
        (
            *_FIELDS,
            ("tie_word_embeddings", True),
            ("moe_layer_freq", 2),
            ("moe_layer_freq", REMOVED),
            ("n_routed_experts", 7),
            ("n_shared_experts", 1),
            ("n_shared_experts", None),
            ("norm_topk_prob", True),
            ("norm_topk_prob", REMOVED),
            ("pretraining_tp", 2),
            ("scoring_func", REMOVED),
        ),
        rejected=(("attention_bias", True), ("scoring_func", "sigmoid")),
    ),
    Variant(
        "ling-like",
        _LING,
        Relaid("Qwen2MoeForCausalLM", _ling_shapes, _as_qwen2_moe, _ling_weights),
        (
            *_FIELDS,
            ("head_dim", 16),
            ("head_dim", None),
            ("head_dim", REMOVED),
            ("norm_head", False),
            ("norm_head", REMOVED),
            ("norm_topk_prob", False),
            ("norm_topk_prob", REMOVED),
            ("num_experts", 7),
            ("num_shared_experts", 1),
            ("num_shared_experts", 0),
            ("num_shared_experts", None),
            ("num_shared_experts", REMOVED),
            ("use_qkv_bias", True),
            ("use_qkv_bias", REMOVED),
        ),
        rejected=(
            ("partial_rotary_factor", 0.5),
            ("score_function", "sigmoid"),
            ("tie_word_embeddings", True),  # with a normalized head
            ("use_bias", True),
            ("use_qk_norm", True),
            ("use_sliding_window", True),
        ),
    ),
    Variant(
        "ling-2-like",
        _LING_2,
        Relaid("Glm4MoeForCausalLM", _ling_shapes, _as_glm4_moe, _split_and_renamed),
        (
            *_FIELDS,
            ("head_dim", 16),
            ("head_dim", None),
            ("moe_router_enable_expert_bias", REMOVED),
            ("moe_shared_expert_intermediate_size", 40),
            ("n_group", 2),
            ("topk_group", 3),
            ("norm_head", True),
            ("norm_topk_prob", REMOVED),
            ("num_experts", 12),
            ("num_nextn_predict_layers", 0),
            ("num_shared_experts", 1),
            ("partial_rotary_factor", 1.0),
            ("partial_rotary_factor", REMOVED),
            ("routed_scaling_factor", REMOVED),
            ("rotary_dim", 10),
            ("score_function", "sigmoid"),
            ("tie_word_embeddings", True),
            ("use_bias", REMOVED),
            ("use_qk_norm", False),
            ("use_qk_norm", REMOVED),
            ("use_qkv_bias", True),
            ("use_rmsnorm", REMOVED),
        ),
        rejected=(
            ("moe_router_enable_expert_bias", False),
            ("moe_shared_expert_intermediate_size", 48),
            ("norm_topk_prob", False),
            ("rotary_dim", 20),
            ("score_function", "softmax"),
            ("use_bias", True),
            ("use_rmsnorm", False),
            ("use_sliding_window", True),
        ),
        without_effect=(".enorm.weight", ".eh_proj.weight"),
    ),
)
