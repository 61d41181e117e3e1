"""HunYuan: queries and keys normed after their rotation, and a scaling of theta by `alpha`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from support.architectures.llama import LLAMA, SIZE_FIELDS
from support.architectures.native import Native
from support.architectures.variant import REMOVED, Variant

_ALPHA = {
    "alpha": 50.0,
    "beta_fast": 32,
    "beta_slow": 1,
    "factor": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 0.0,
    "type": "dynamic",
}
_HUNYUAN: dict[str, Any] = {
    **LLAMA,
    "attention_bias": False,
    "attention_head_dim": 20,
    "head_dim": 20,
    "mlp_bias": False,
    "rope_scaling": _ALPHA,
    "tie_word_embeddings": True,
    "use_cla": False,
    "use_qk_norm": True,
}
_DENSE: dict[str, Any] = {
    "architectures": ["HunYuanDenseV1ForCausalLM"],
    "model_type": "hunyuan_v1_dense",
    **_HUNYUAN,
}
_A13B: dict[str, Any] = {
    "architectures": ["HunYuanMoEV1ForCausalLM"],
    "model_type": "hunyuan_v1_moe",
    **_HUNYUAN,
    "intermediate_size": 40,
    "moe_intermediate_size": [40, 40],
    "moe_topk": [2, 2],
    "num_experts": 5,
    "num_shared_expert": [1, 1],
    "use_mixed_mlp_moe": True,
}


def _with_head_dim(config: Mapping[str, Any]) -> dict[str, Any]:
    """transformers' classes need head_dim, which the first published configs lack."""
    given = config.get("head_dim") or config.get("attention_head_dim")
    return {
        **config,
        "head_dim": given or config["hidden_size"] // config["num_attention_heads"],
    }


_FIELDS: tuple[tuple[str, Any], ...] = (
    *((name, value) for name, value in SIZE_FIELDS if name != "num_hidden_layers"),
    ("num_key_value_heads", 1),
    ("num_key_value_heads", REMOVED),
    ("head_dim", REMOVED),
    ("attention_head_dim", REMOVED),
    ("hidden_act", "gelu"),
    ("rms_norm_eps", 0.3),
    ("rms_norm_eps", REMOVED),
    ("rope_theta", 700.0),
    ("rope_theta", REMOVED),
    ("rope_scaling", {**_ALPHA, "alpha": 7.0}),
    ("rope_scaling", {**_ALPHA, "factor": 2.0}),
    ("rope_scaling", {"type": "linear", "factor": 4.0}),
    ("rope_scaling", REMOVED),
    ("attention_bias", True),
    ("attention_bias", REMOVED),
    ("tie_word_embeddings", False),
    ("tie_word_embeddings", REMOVED),
)
_REJECTED: tuple[tuple[str, Any], ...] = (
    ("attention_head_dim", 16),
    ("mlp_bias", True),
    ("partial_rotary_factor", 0.5),
    ("rope_scaling", {**_ALPHA, "alpha": 0.0}),
    ("use_cla", True),
    ("use_qk_norm", False),
)
_PUBLISHED: tuple[Variant, ...] = (
    Variant(
        "hunyuan-7b-like",
        _DENSE,
        Native("HunYuanDenseV1ForCausalLM", _with_head_dim),
        (*_FIELDS, ("num_hidden_layers", 3)),
        _REJECTED,
    ),
    Variant(
        "hunyuan-a13b-like",
        _A13B,
        Native("HunYuanMoEV1ForCausalLM", _with_head_dim),
        (
            *(field for field in _FIELDS if field[0] != "intermediate_size"),
            ("moe_topk", [1, 3]),
            ("moe_topk", 3),
            ("moe_topk", REMOVED),
            ("moe_intermediate_size", REMOVED),
            ("num_experts", 7),
            ("num_shared_expert", 1),
            ("routed_scaling_factor", 1.0),
        ),
        (
            *_REJECTED,
            ("intermediate_size", 48),  # without moe_intermediate_size
            ("moe_intermediate_size", [40, 56]),
            ("moe_layer_num_skipped", 1),
            ("norm_topk_prob", False),
            ("num_shared_expert", [1, 2]),
            ("routed_scaling_factor", 2.0),
            ("group_limited_greedy", True),
            ("use_mixed_mlp_moe", False),
        ),
    ),
)


def _as_saved_by_transformers(variant: Variant) -> Variant:
    """The form of transformers 5: `rope_parameters`, and experts in 3-D tensors."""
    assert isinstance(variant.layout, Native)
    layout = replace(variant.layout, as_saved_by_transformers=True)
    name = variant.name.removesuffix("-like") + "-transformers-5-like"
    return replace(variant, name=name, layout=layout, fields=(), rejected=())


VARIANTS: tuple[Variant, ...] = (
    *_PUBLISHED,
    *(_as_saved_by_transformers(variant) for variant in _PUBLISHED),
    Variant(
        "hunyuan-a13b-sizes-like",
        {
            name: value
            for name, value in _A13B.items()
            if not name.startswith("moe_") and name != "num_shared_expert"
        }
        | {"num_experts_per_tok": 3, "tie_word_embeddings": False},
        Native("HunYuanMoEV1ForCausalLM", _with_head_dim),
        (("intermediate_size", 48), ("num_hidden_layers", 3), ("num_experts_per_tok", 2)),
    ),
)
