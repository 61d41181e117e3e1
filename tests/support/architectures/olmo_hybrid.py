"""OLMo Hybrid: Gated DeltaNet, and attention without rotary positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from support.architectures.qwen3_next import (
    FULL,
    HYBRID,
    HYBRID_FIELDS,
    LINEAR,
    REMOVED_HEADS,
    TokenByToken,
)
from support.architectures.variant import REMOVED, Tensors, Variant

_NO_ROPE = {"rope_theta": None, "rope_type": "default"}
_ROPE = {"rope_theta": 700.0, "rope_type": "default"}
_CONFIG: dict[str, Any] = {
    "architectures": ["OlmoHybridForCausalLM"],
    "model_type": "olmo_hybrid",
    **{
        name: value
        for name, value in HYBRID.items()
        if name not in ("head_dim", "full_attention_interval", "rope_theta")
    },
    "layer_types": [LINEAR, FULL, LINEAR],
    "linear_a_log_max": 16.0,
    "linear_a_log_min": 0.0,
    "linear_allow_neg_eigval": True,
    "linear_dt_init_floor": 1e-4,
    "linear_dt_max": 0.1,
    "linear_dt_min": 0.001,
    "pad_token_id": None,
    "rope_parameters": _NO_ROPE,
}
_NOT_HERE = {"num_hidden_layers", "head_dim", "full_attention_interval"}


@dataclass(frozen=True)
class _SmallValues(TokenByToken):
    """Small values, whose norm amplifies no rounding errors: its epsilon is fixed.

    As published, queries, keys and values have a convolution each, and norms have other names:
    transformers 5.23 saves convolutions of equal sizes, and renames the norm of attention.
    """

    def random_checkpoint(
        self, config: Mapping[str, Any], seed: int
    ) -> tuple[dict[str, Any], Tensors]:
        config, tensors = super().random_checkpoint(config, seed)
        for layer in range(config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}"
            if f"{prefix}.linear_attn.q_proj.weight" in tensors:
                self._change(f"{prefix}.linear_attn", tensors)
            elif not self.as_saved_by_transformers:
                weight = tensors.pop(f"{prefix}.feedforward_layer_norm.weight")
                tensors[f"{prefix}.post_attention_layernorm.weight"] = weight
        return config, tensors

    def _change(self, prefix: str, tensors: Tensors) -> None:
        fused = f"{prefix}.conv1d.weight"
        separate = [f"{prefix}.{name}_conv1d.weight" for name in "qkv"]
        names = [fused] if self.as_saved_by_transformers else separate
        sizes = [tensors[f"{prefix}.{name}_proj.weight"].shape[0] for name in "qkv"]
        *parts, values = torch.cat([tensors[name] for name in names]).split(sizes)
        parts.append(0.02 * values)
        if self.as_saved_by_transformers:
            tensors[fused] = torch.cat(parts)
        else:
            tensors.update(zip(separate, parts, strict=True))


VARIANTS: tuple[Variant, ...] = (
    Variant(
        "olmo-hybrid-like",
        _CONFIG,
        _SmallValues("OlmoHybridForCausalLM"),
        (
            *(field for field in HYBRID_FIELDS if field[0] not in _NOT_HERE),
            ("intermediate_size", 88),
            ("head_dim", 16),
            ("num_key_value_heads", REMOVED),
            ("layer_types", REMOVED),
            *REMOVED_HEADS,
            ("linear_num_key_heads", REMOVED),
            ("linear_a_log_max", 8.0),
            ("linear_a_log_min", 1.0),
            ("linear_allow_neg_eigval", False),
            ("linear_allow_neg_eigval", REMOVED),
            ("linear_dt_init_floor", 1e-3),
            ("linear_dt_max", 0.2),
            ("linear_dt_min", 0.002),
            ("rope_parameters", REMOVED),
            ("rope_parameters", _ROPE),
            ("rope_parameters", {"rope_type": "linear", "rope_theta": 700.0, "factor": 4.0}),
            ("rope_theta", None),
            ("rope_scaling", None),
        ),
        rejected=(
            ("hidden_act", "gelu"),
            ("partial_rotary_factor", 0.5),
        ),
    ),
    Variant(
        "olmo-hybrid-four-layers-like",
        {
            **{name: value for name, value in _CONFIG.items() if name != "layer_types"},
            "linear_num_value_heads": 12,
            "num_hidden_layers": 4,
            "rope_parameters": _ROPE,
        },
        _SmallValues("OlmoHybridForCausalLM"),
        (
            ("num_hidden_layers", 2),
            ("num_hidden_layers", 5),
            ("linear_num_value_heads", REMOVED),
        ),
    ),
    Variant(
        "olmo-hybrid-transformers-5-like",
        _CONFIG,
        _SmallValues("OlmoHybridForCausalLM", as_saved_by_transformers=True),
    ),
)
