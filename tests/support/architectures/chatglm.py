"""ChatGLM 2 and 3, and GLM 4 as first published, computed by Glm.

Source: modeling_chatglm.py of THUDM/chatglm3-6b (SelfAttention, MLP, RotaryEmbedding) and vLLM
0.6's vllm/model_executor/models/chatglm.py.
"""

from __future__ import annotations

from typing import Any

import torch

from support.architectures.relaid import Config, Relaid, Shapes
from support.architectures.variant import VOCAB_SIZE, Tensors, Variant

_CHATGLM: dict[str, Any] = {
    "architectures": ["ChatGLMModel"],
    "model_type": "chatglm",
    "add_bias_linear": False,
    "add_qkv_bias": True,
    "apply_query_key_layer_scaling": True,
    "apply_residual_connection_post_layernorm": False,
    "attention_softmax_in_fp32": True,
    "bias_dropout_fusion": True,
    "ffn_hidden_size": 104,
    "fp32_residual_connection": False,
    "hidden_size": 72,
    "kv_channels": 20,
    "layernorm_epsilon": 1e-5,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "num_attention_heads": 6,
    "num_layers": 2,
    "original_rope": True,
    "padded_vocab_size": VOCAB_SIZE,
    "post_layer_norm": True,
    "rmsnorm": True,
    "seq_length": 256,
    "tie_word_embeddings": False,
}
_GLM_4: dict[str, Any] = {
    **_CHATGLM,
    "architectures": ["ChatGLMForConditionalGeneration"],
    "layernorm_epsilon": 1.5625e-07,
    "rope_ratio": 50,
}


def _num_kv_heads(config: Config) -> int:
    shared = config["multi_query_attention"]
    return int(config["multi_query_group_num" if shared else "num_attention_heads"])


def _shapes(config: Config) -> Shapes:
    hidden, inner = config["hidden_size"], config["ffn_hidden_size"]
    width = config["num_attention_heads"] * config["kv_channels"]
    num_rows = width + 2 * _num_kv_heads(config) * config["kv_channels"]
    vocabulary = (config["padded_vocab_size"], hidden)
    shapes: Shapes = {"transformer.embedding.word_embeddings.weight": vocabulary}
    for index in range(config["num_layers"]):
        layer = f"transformer.encoder.layers.{index}"
        shapes |= {
            f"{layer}.input_layernorm.weight": (hidden,),
            f"{layer}.self_attention.query_key_value.weight": (num_rows, hidden),
            f"{layer}.self_attention.dense.weight": (hidden, width),
            f"{layer}.post_attention_layernorm.weight": (hidden,),
            f"{layer}.mlp.dense_h_to_4h.weight": (2 * inner, hidden),
            f"{layer}.mlp.dense_4h_to_h.weight": (hidden, inner),
        }
        if config["add_qkv_bias"]:
            shapes[f"{layer}.self_attention.query_key_value.bias"] = (num_rows,)
    shapes["transformer.encoder.final_layernorm.weight"] = (hidden,)
    shapes["transformer.output_layer.weight"] = vocabulary
    shapes["transformer.rotary_pos_emb.inv_freq"] = (config["kv_channels"] // 4,)
    return shapes


def _as_glm(config: Config, max_model_len: int | None) -> dict[str, Any]:
    return {
        "vocab_size": config["padded_vocab_size"],
        "hidden_size": config["hidden_size"],
        "intermediate_size": config["ffn_hidden_size"],
        "num_hidden_layers": config["num_layers"],
        "num_attention_heads": config["num_attention_heads"],
        "num_key_value_heads": _num_kv_heads(config),
        "head_dim": config["kv_channels"],
        "rms_norm_eps": config["layernorm_epsilon"],
        "attention_bias": config["add_qkv_bias"],
        "partial_rotary_factor": 0.5,
        "rope_theta": 10000.0 * config.get("rope_ratio", 1),
        "max_position_embeddings": config["seq_length"],
        "pad_token_id": None,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }


_NAMES = {
    "input_layernorm": "input_layernorm",
    "self_attention.dense": "self_attn.o_proj",
    "post_attention_layernorm": "post_attention_layernorm",
    "mlp.dense_h_to_4h": "mlp.gate_up_proj",
    "mlp.dense_4h_to_h": "mlp.down_proj",
}


def _weights(config: Config, tensors: Tensors) -> Tensors:
    weights: Tensors = {
        "model.embed_tokens.weight": tensors["transformer.embedding.word_embeddings.weight"],
        "model.norm.weight": tensors["transformer.encoder.final_layernorm.weight"],
        "lm_head.weight": tensors["transformer.output_layer.weight"],
    }
    key_rows = _num_kv_heads(config) * config["kv_channels"]
    for index in range(config["num_layers"]):
        theirs, ours = f"transformer.encoder.layers.{index}", f"model.layers.{index}"
        for name, renamed in _NAMES.items():
            weights[f"{ours}.{renamed}.weight"] = tensors[f"{theirs}.{name}.weight"]
        for kind in ("weight", "bias") if config["add_qkv_bias"] else ("weight",):
            rows = tensors[f"{theirs}.self_attention.query_key_value.{kind}"]
            parts = torch.split(rows, [len(rows) - 2 * key_rows, key_rows, key_rows])
            for letter, part in zip("qkv", parts, strict=True):
                weights[f"{ours}.self_attn.{letter}_proj.{kind}"] = part
    return weights


_LAYOUT = Relaid("GlmForCausalLM", _shapes, _as_glm, _weights)
# Values that no published model has.
_REJECTED: tuple[tuple[str, Any], ...] = (
    ("add_bias_linear", True),
    ("apply_residual_connection_post_layernorm", True),
    ("original_rope", False),
    ("position_encoding_2d", True),
    ("post_layer_norm", False),
    ("pre_seq_len", 8),
    ("quantization_bit", 4),
    ("rmsnorm", False),
    ("tie_word_embeddings", True),
)

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "chatglm3-6b-like",
        _CHATGLM,
        _LAYOUT,
        (
            ("hidden_size", 96),
            ("ffn_hidden_size", 88),
            ("num_layers", 3),
            ("num_attention_heads", 4),
            ("padded_vocab_size", 400),
            ("kv_channels", 24),
            ("layernorm_epsilon", 0.3),
            ("multi_query_group_num", 1),
            ("multi_query_attention", False),
            ("add_qkv_bias", False),
            ("rope_ratio", 16),
            ("apply_query_key_layer_scaling", False),
            ("attention_softmax_in_fp32", False),
            ("bias_dropout_fusion", False),
            ("fp32_residual_connection", True),
            ("seq_length", 128),
        ),
        rejected=_REJECTED,
        without_effect=(".inv_freq",),
    ),
    Variant("glm-4-9b-chat-like", _GLM_4, _LAYOUT, without_effect=(".inv_freq",)),
)
