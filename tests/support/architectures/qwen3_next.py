"""Qwen3-Next: Gated DeltaNet, gated attention, and experts with a gated shared expert."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import transformers
from torch import Tensor

from support.architectures.llama import LLAMA, ROPE_FIELDS, SIZE_FIELDS
from support.architectures.native import Native
from support.architectures.variant import REMOVED, Oracle, Tensors, Variant

# Value heads share keys, and no two dimensions are equal by accident.
DELTA_NET: dict[str, Any] = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_value_head_dim": 10,
}
DELTA_NET_FIELDS: tuple[tuple[str, Any], ...] = (
    ("linear_conv_kernel_dim", 3),
    ("linear_conv_kernel_dim", REMOVED),
    ("linear_key_head_dim", 16),
    ("linear_num_key_heads", 3),
    ("linear_num_value_heads", 2),
    ("linear_value_head_dim", 14),
)
# The default number of key heads fits to other numbers of heads.
REMOVED_HEADS: tuple[tuple[str, Any], ...] = (
    ("linear_key_head_dim", REMOVED),
    ("linear_num_value_heads", REMOVED),
    ("linear_value_head_dim", REMOVED),
)
LINEAR, FULL = "linear_attention", "full_attention"
HYBRID: dict[str, Any] = {
    **LLAMA,
    **DELTA_NET,
    "num_hidden_layers": 3,
    "head_dim": 16,
    "rms_norm_eps": 1e-2,  # norms of small outputs amplify rounding errors
    "attention_bias": False,
    "full_attention_interval": 3,
}
HYBRID_FIELDS: tuple[tuple[str, Any], ...] = (
    *DELTA_NET_FIELDS,
    *(field for field in SIZE_FIELDS if field[0] not in ("num_hidden_layers", "intermediate_size")),
    ("num_hidden_layers", 4),
    ("num_key_value_heads", 1),
    ("head_dim", 24),
    ("attention_bias", True),
    ("full_attention_interval", 2),
    ("layer_types", [FULL, LINEAR, FULL]),
    ("layer_types", [LINEAR, FULL, LINEAR]),
    ("rms_norm_eps", 0.3),
    ("tie_word_embeddings", True),
    ("tie_word_embeddings", REMOVED),
)
_CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    **HYBRID,
    "partial_rotary_factor": 0.25,
    "rope_scaling": None,
    "moe_intermediate_size": 40,
    "shared_expert_intermediate_size": 56,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [1],
}


@dataclass(frozen=True)
class TokenByToken(Native):
    """Linear attention as in decoding, whose rounding errors are smaller than those of chunks.

    Attributes:
        chunked, recurrent: functions of the model's module.
    """

    chunked: str = "torch_chunk_gated_delta_rule"
    recurrent: str = "torch_recurrent_gated_delta_rule"

    def load(
        self, config: Mapping[str, Any], tensors: Tensors, max_model_len: int | None
    ) -> Oracle:
        oracle = super().load(config, tensors, max_model_len)
        module = importlib.import_module(getattr(transformers, self.model).__module__)

        def forward(ids: Tensor) -> Tensor:
            with patch.object(module, self.chunked, getattr(module, self.recurrent)):
                return oracle.forward(ids)

        return Oracle(forward)


def prediction_module(config: Mapping[str, Any]) -> Tensors:
    """Tensors of the module that predicts further tokens."""
    size = config["hidden_size"]
    return {"mtp.norm.weight": torch.ones(size), "mtp.fc.weight": torch.ones(size, 2 * size)}


VARIANTS: tuple[Variant, ...] = (
    Variant(
        "qwen3-next-like",
        _CONFIG,
        TokenByToken("Qwen3NextForCausalLM", ignored=prediction_module),
        (
            *HYBRID_FIELDS,
            *REMOVED_HEADS,
            *ROPE_FIELDS,
            ("intermediate_size", 88),
            ("partial_rotary_factor", 0.5),
            ("partial_rotary_factor", REMOVED),
            ("moe_intermediate_size", 48),
            ("shared_expert_intermediate_size", 64),
            ("num_experts", 7),
            ("num_experts_per_tok", 3),
            ("norm_topk_prob", False),
            ("norm_topk_prob", REMOVED),
            ("decoder_sparse_step", 2),
            ("mlp_only_layers", []),
            ("mlp_only_layers", REMOVED),
        ),
        rejected=(("hidden_act", "gelu"), ("layer_types", [FULL, LINEAR, "sliding_attention"])),
        without_effect=("mtp.norm.weight", "mtp.fc.weight"),
    ),
    Variant(
        "qwen3-next-transformers-5-like",
        _CONFIG,
        TokenByToken("Qwen3NextForCausalLM", as_saved_by_transformers=True),
    ),
)
