"""EXAONE 3 and 4: Llama by other names; layers with windows and without rotary positions.

Sources: the documentation of `sliding_window_pattern` in transformers' Exaone4Config, whose code
takes numbers alone; vLLM 0.6's vllm/model_executor/models/exaone.py.
"""

from __future__ import annotations

from typing import Any

from support.architectures.llama import LLAMA, ROPE_FIELDS, SIZE_FIELDS
from support.architectures.native import Native
from support.architectures.relaid import Config, Relaid, Shapes
from support.architectures.variant import REMOVED, Tensors, Variant

_TYPES = {"L": "sliding_attention", "G": "full_attention"}
_EXAONE_4: dict[str, Any] = {
    "architectures": ["Exaone4ForCausalLM"],
    "model_type": "exaone4",
    **LLAMA,
    "head_dim": 20,
    "layer_types": [_TYPES[letter] for letter in "LLLG"],
    "num_hidden_layers": 4,
    "sliding_window": 7,
    "sliding_window_pattern": "LLLG",
}
# Of EXAONE 4 1.2B.
_WITHOUT_WINDOW: dict[str, Any] = {
    **_EXAONE_4,
    "layer_types": [_TYPES["G"]] * 4,
    "sliding_window": None,
    "sliding_window_pattern": None,
    "tie_word_embeddings": True,
}


def _with_layer_types(config: Config) -> dict[str, Any]:
    """The types that a pattern of letters means: it is repeated, and the last layer sees all."""
    pattern, count = config.get("sliding_window_pattern"), config["num_hidden_layers"]
    if config.get("layer_types") or not isinstance(pattern, str):
        return dict(config)
    letters = (pattern * count)[: count - 1] + "G"
    return {**config, "layer_types": [_TYPES[letter] for letter in letters]}


_EXAONE_3: dict[str, Any] = {
    "architectures": ["ExaoneForCausalLM"],
    "model_type": "exaone",
    **{
        name: value
        for name, value in LLAMA.items()
        if name not in ("num_hidden_layers", "hidden_act", "rms_norm_eps")
    },
    "activation_function": "silu",
    "head_dim": 20,
    "layer_norm_epsilon": 1e-5,
    "num_layers": 2,
}
# Published names, and those of Llama.
_NAMES = {
    "transformer.h.": "model.layers.",
    "transformer.wte.": "model.embed_tokens.",
    "transformer.ln_f.": "model.norm.",
    ".ln_1.": ".input_layernorm.",
    ".ln_2.": ".post_attention_layernorm.",
    ".attn.attention.out_proj.": ".self_attn.o_proj.",
    ".attn.attention.": ".self_attn.",
    ".c_fc_0.": ".gate_proj.",
    ".c_fc_1.": ".up_proj.",
    ".mlp.c_proj.": ".mlp.down_proj.",
}


def _exaone_3_shapes(config: Config) -> Shapes:
    hidden, inner = config["hidden_size"], config.get("intermediate_size")
    inner = inner or 4 * hidden
    num_heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // num_heads
    query_size = num_heads * head_dim
    kv_size = (config.get("num_key_value_heads") or num_heads) * head_dim
    shapes: Shapes = {"transformer.wte.weight": (config["vocab_size"], hidden)}
    for index in range(config["num_layers"]):
        layer = f"transformer.h.{index}"
        shapes |= {
            f"{layer}.ln_1.weight": (hidden,),
            f"{layer}.attn.attention.q_proj.weight": (query_size, hidden),
            f"{layer}.attn.attention.k_proj.weight": (kv_size, hidden),
            f"{layer}.attn.attention.v_proj.weight": (kv_size, hidden),
            f"{layer}.attn.attention.out_proj.weight": (hidden, query_size),
            f"{layer}.ln_2.weight": (hidden,),
            f"{layer}.mlp.c_fc_0.weight": (inner, hidden),
            f"{layer}.mlp.c_fc_1.weight": (inner, hidden),
            f"{layer}.mlp.c_proj.weight": (hidden, inner),
        }
    shapes["transformer.ln_f.weight"] = (hidden,)
    if not config.get("tie_word_embeddings", True):
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def _exaone_3_as_llama(config: Config, max_model_len: int | None) -> dict[str, Any]:
    return {
        **config,
        "model_type": "llama",
        "hidden_act": config.get("activation_function", "silu"),
        "intermediate_size": config.get("intermediate_size") or 4 * config["hidden_size"],
        "num_hidden_layers": config["num_layers"],
        "rms_norm_eps": config.get("layer_norm_epsilon", 1e-6),
        "tie_word_embeddings": config.get("tie_word_embeddings", True),
    }


def _exaone_3_weights(config: Config, tensors: Tensors) -> Tensors:
    weights: Tensors = {}
    for name, tensor in tensors.items():
        for theirs, llamas in _NAMES.items():
            name = name.replace(theirs, llamas)
        weights[name] = tensor
    return weights


_FIELDS: tuple[tuple[str, Any], ...] = (
    *(field for field in SIZE_FIELDS if field[0] != "num_hidden_layers"),
    *ROPE_FIELDS,
    ("num_key_value_heads", 1),
    ("head_dim", 16),
    ("head_dim", REMOVED),
    ("hidden_act", "gelu"),
    ("rms_norm_eps", 0.3),
    ("rms_norm_eps", REMOVED),
)
_REJECTED: tuple[tuple[str, Any], ...] = (
    ("attention_bias", True),
    ("partial_rotary_factor", 0.5),
)

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "exaone-3.5-like",
        _EXAONE_3,
        Relaid("LlamaForCausalLM", _exaone_3_shapes, _exaone_3_as_llama, _exaone_3_weights),
        (
            *(field for field in SIZE_FIELDS if field[0] != "num_hidden_layers"),
            *ROPE_FIELDS,
            ("intermediate_size", None),
            ("num_layers", 3),
            ("num_key_value_heads", 1),
            ("num_key_value_heads", None),
            ("head_dim", 16),
            ("head_dim", REMOVED),
            ("activation_function", "gelu"),
            ("activation_function", REMOVED),
            ("layer_norm_epsilon", 0.3),
            ("layer_norm_epsilon", REMOVED),
            ("tie_word_embeddings", True),
            ("tie_word_embeddings", REMOVED),
        ),
        (*_REJECTED, ("bias", True), ("mlp_bias", True)),
    ),
    Variant(
        "exaone-4-32b-like",
        _EXAONE_4,
        Native("Exaone4ForCausalLM"),
        (
            *_FIELDS,
            ("layer_types", [_TYPES[letter] for letter in "LGLG"]),
            ("sliding_window", 5),
            ("sliding_window", REMOVED),
            ("sliding_window_pattern", 2),
            ("tie_word_embeddings", True),
            ("tie_word_embeddings", REMOVED),
        ),
        _REJECTED,
    ),
    Variant(
        "exaone-4-pattern-like",
        {name: value for name, value in _EXAONE_4.items() if name != "layer_types"},
        Native("Exaone4ForCausalLM", _with_layer_types),
        (
            ("num_hidden_layers", 3),
            ("num_hidden_layers", 5),
            ("sliding_window", 5),
            ("sliding_window_pattern", "GLL"),
            ("sliding_window_pattern", 2),
            ("sliding_window_pattern", REMOVED),
        ),
        (("sliding_window_pattern", "LLLX"),),
    ),
    Variant(
        "exaone-4-1.2b-like",
        _WITHOUT_WINDOW,
        Native("Exaone4ForCausalLM"),
        (
            ("sliding_window", 7),
            ("sliding_window_pattern", 4),
            ("rope_theta", 700.0),
            ("tie_word_embeddings", False),
        ),
        (("layer_types", [_TYPES[letter] for letter in "LLLG"]),),
    ),
    Variant(
        "exaone-4-transformers-5-like",
        _EXAONE_4,
        Native("Exaone4ForCausalLM", as_saved_by_transformers=True),
    ),
)
