"""InternLM, InternLM 2 and XVERSE: Llama with biases, with grouped projections, and as it is.

Sources: modeling_internlm2.py of internlm/internlm2-7b and vLLM 0.6's
vllm/model_executor/models/{internlm2,xverse}.py; vLLM 0.6 serves InternLM with its Llama.
"""

from __future__ import annotations

from typing import Any

from support.architectures.llama import LLAMA, SIZE_FIELDS
from support.architectures.native import Native
from support.architectures.relaid import Config, Relaid, Shapes, split_grouped_qkv
from support.architectures.variant import REMOVED, Tensors, Variant

_MULTI_HEAD: dict[str, Any] = {
    name: value for name, value in LLAMA.items() if name not in ("num_key_value_heads",)
}
_INTERNLM: dict[str, Any] = {
    "architectures": ["InternLMForCausalLM"],
    "model_type": "internlm",
    **{name: value for name, value in _MULTI_HEAD.items() if name != "rope_theta"},
    "bias": True,
    "rotary": {"base": 10000, "type": "dynamic"},
}
_XVERSE: dict[str, Any] = {
    "architectures": ["XverseForCausalLM"],
    "model_type": "xverse",
    **{name: value for name, value in _MULTI_HEAD.items() if name != "rope_theta"},
    "rms_norm_eps": 1e-6,
}
_INTERNLM_2: dict[str, Any] = {
    "architectures": ["InternLM2ForCausalLM"],
    "model_type": "internlm2",
    **LLAMA,
    "rope_theta": 1000000.0,
    "rope_scaling": {"type": "dynamic", "factor": 2.0},
    "bias": False,
}


def _internlm_as_llama(config: Config) -> dict[str, Any]:
    """Scaling of the type "dynamic" starts beyond max_position_embeddings, so not here."""
    rotary = config.get("rotary") or {}
    return {
        **config,
        "model_type": "llama",
        "attention_bias": config.get("bias", True),
        "rope_theta": float(rotary.get("base", 10000)),
    }


def _xverse_as_llama(config: Config) -> dict[str, Any]:
    return {**config, "model_type": "llama"}


def _internlm2_as_llama(config: Config, max_model_len: int | None) -> dict[str, Any]:
    llama = {**config, "model_type": "llama", "attention_bias": config.get("bias", True)}
    scaling = config.get("rope_scaling") or {}
    trained_length = config["max_position_embeddings"]
    if scaling.get("type") != "dynamic" or (max_model_len or 0) <= trained_length:
        return llama
    # modeling_internlm2.py computes theta by a sequence's length; TACO by the longest.
    head_dim, factor = _head_dim(config), scaling["factor"]
    growth = factor * max_model_len / trained_length - (factor - 1)
    theta = config["rope_theta"] * growth ** (head_dim / (head_dim - 2))
    return {**llama, "rope_theta": theta, "rope_scaling": None}


def _head_dim(config: Config) -> int:
    return int(config["hidden_size"] // config["num_attention_heads"])


def _internlm2_shapes(config: Config) -> Shapes:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    num_rows = (config["num_attention_heads"] + 2 * config["num_key_value_heads"]) * _head_dim(
        config
    )
    shapes: Shapes = {"model.tok_embeddings.weight": (config["vocab_size"], hidden)}
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        shapes |= {
            f"{layer}.attention_norm.weight": (hidden,),
            f"{layer}.attention.wqkv.weight": (num_rows, hidden),
            f"{layer}.attention.wo.weight": (hidden, hidden),
            f"{layer}.ffn_norm.weight": (hidden,),
            f"{layer}.feed_forward.w1.weight": (inner, hidden),
            f"{layer}.feed_forward.w3.weight": (inner, hidden),
            f"{layer}.feed_forward.w2.weight": (hidden, inner),
        }
        if config.get("bias", True):
            shapes |= {
                f"{layer}.attention.wqkv.bias": (num_rows,),
                f"{layer}.attention.wo.bias": (hidden,),
            }
    shapes["model.norm.weight"] = (hidden,)
    if not config.get("tie_word_embeddings", False):
        shapes["output.weight"] = (config["vocab_size"], hidden)
    return shapes


_INTERNLM_2_NAMES = {
    "tok_embeddings": "embed_tokens",
    "attention_norm": "input_layernorm",
    "attention.wo": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w3": "mlp.up_proj",
    "feed_forward.w2": "mlp.down_proj",
}


def _internlm2_weights(config: Config, tensors: Tensors) -> Tensors:
    weights: Tensors = {}
    for name, tensor in tensors.items():
        if ".wqkv." in name:
            parts = split_grouped_qkv(tensor, config["num_key_value_heads"], _head_dim(config))
            for letter, part in zip("qkv", parts, strict=True):
                weights[name.replace("attention.wqkv", f"self_attn.{letter}_proj")] = part
            continue
        renamed = "lm_head.weight" if name == "output.weight" else name
        for theirs, ours in _INTERNLM_2_NAMES.items():
            renamed = renamed.replace(f".{theirs}.", f".{ours}.")
        weights[renamed] = tensor
    return weights


_FIELDS: tuple[tuple[str, Any], ...] = (
    *SIZE_FIELDS,
    ("hidden_act", "gelu"),
    ("rms_norm_eps", 0.3),
    ("tie_word_embeddings", True),
)

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "internlm-7b-like",
        _INTERNLM,
        Native("LlamaForCausalLM", _internlm_as_llama),
        (
            *_FIELDS,
            ("bias", False),
            ("rotary", {"base": 700, "type": "origin"}),
            ("rotary", REMOVED),
        ),
        rejected=(("rotary", {"base": 10000, "type": "unknown"}),),
    ),
    Variant(
        "internlm2-like",
        _INTERNLM_2,
        Relaid("LlamaForCausalLM", _internlm2_shapes, _internlm2_as_llama, _internlm2_weights),
        (
            *_FIELDS,
            ("num_key_value_heads", 1),
            ("num_key_value_heads", 6),
            ("rope_theta", 700.0),
            ("rope_scaling", REMOVED),
            ("rope_scaling", {"type": "linear", "factor": 4.0}),
            ("rope_scaling", {"type": "dynamic", "factor": 3.0}),
            ("bias", True),
        ),
        rejected=(("rope_scaling", {"type": "unknown", "factor": 2.0}),),
    ),
    Variant(
        "internlm2-biased-like",
        {**_INTERNLM_2, "bias": True, "num_key_value_heads": 3},
        Relaid("LlamaForCausalLM", _internlm2_shapes, _internlm2_as_llama, _internlm2_weights),
    ),
    Variant(
        "xverse-like",
        _XVERSE,
        Native("LlamaForCausalLM", _xverse_as_llama),
        (*_FIELDS, ("rope_theta", 700.0)),
        rejected=(("bias", True),),
    ),
)
