"""DBRX, whose config has the fields of attention and of experts in objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from support.architectures.native import Native
from support.architectures.variant import REMOVED, VOCAB_SIZE, Variant

_ATTENTION: dict[str, Any] = {"clip_qkv": 0.8, "kv_n_heads": 2, "rope_theta": 5000.0}
_EXPERTS: dict[str, Any] = {
    "ffn_act_fn": {"name": "silu"},
    "ffn_hidden_size": 40,
    "moe_jitter_eps": 0.01,
    "moe_loss_weight": 0.05,
    "moe_normalize_expert_weights": 1,
    "moe_num_experts": 5,
    "moe_top_k": 2,
}
_DBRX: dict[str, Any] = {
    "architectures": ["DbrxForCausalLM"],
    "model_type": "dbrx",
    "attn_config": _ATTENTION,
    "d_model": 72,
    "ffn_config": _EXPERTS,
    "max_seq_len": 256,
    "n_heads": 6,
    "n_layers": 2,
    "tie_word_embeddings": False,
    "vocab_size": VOCAB_SIZE,
}


def _native(config: Mapping[str, Any]) -> dict[str, Any]:
    """For transformers 5, which reads theta beside `attn_config`, and needs floats and a clip."""
    attention, experts = ({**config.get(name, {})} for name in ("attn_config", "ffn_config"))
    theta = attention.setdefault("rope_theta", 10_000.0)
    attention["clip_qkv"] = attention.get("clip_qkv") or 1e9
    if experts.get("moe_normalize_expert_weights") is not None:
        experts["moe_normalize_expert_weights"] *= 1.0
    return {"rope_theta": theta, **config, "attn_config": attention, "ffn_config": experts}


def _attention(**fields: Any) -> tuple[str, Any]:
    return "attn_config", {**_ATTENTION, **fields}


def _experts(**fields: Any) -> tuple[str, Any]:
    return "ffn_config", {**_EXPERTS, **fields}


VARIANTS: tuple[Variant, ...] = (
    Variant(
        "dbrx-like",
        _DBRX,
        Native("DbrxForCausalLM", _native),
        (
            ("d_model", 96),
            ("n_heads", 12),
            ("n_layers", 3),
            ("max_seq_len", 128),
            ("vocab_size", 400),
            ("tie_word_embeddings", REMOVED),
            _attention(clip_qkv=None),
            _attention(clip_qkv=8),
            _attention(kv_n_heads=1),
            _attention(rope_theta=700.0),
            ("attn_config", {"clip_qkv": 0.8}),
            ("attn_config", REMOVED),
            _experts(ffn_act_fn={"name": "gelu"}),
            _experts(ffn_act_fn=None),
            _experts(ffn_hidden_size=48),
            _experts(moe_jitter_eps=0.5),
            _experts(moe_normalize_expert_weights=None),
            _experts(moe_num_experts=7),
            _experts(moe_top_k=1),
            _experts(moe_top_k=3),
            ("ffn_config", {"ffn_hidden_size": 40}),
        ),
        rejected=(
            ("rope_parameters", {"rope_type": "default", "rope_theta": 700.0}),
            _experts(moe_normalize_expert_weights=2),
            _experts(ffn_act_fn={"name": "gelu", "approximate": "tanh"}),
            _experts(uniform_expert_assignment=True),
        ),
    ),
    Variant(
        "dbrx-transformers-5-like",
        _DBRX,
        Native("DbrxForCausalLM", _native, as_saved_by_transformers=True),
    ),
)
