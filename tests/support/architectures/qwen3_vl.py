"""Qwen3-VL and Qwen3-VL MoE, the text parts: for text alone Qwen 3 and Qwen 3 MoE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from support.architectures.llama import LLAMA
from support.architectures.native import Native
from support.architectures.variant import REMOVED, Oracle, Tensors, Variant
from support.architectures.wrapped import Wrapped, text_sweep

# The axes take turns on the first 3 * 2 pairs of a head's 10, and time has the others.
_SECTIONS: dict[str, Any] = {"mrope_interleaved": True, "mrope_section": [6, 2, 2]}
_TEXT: dict[str, Any] = {
    "model_type": "qwen3_vl_text",
    **LLAMA,
    "head_dim": 20,
    "attention_bias": False,
    "rope_scaling": {"rope_type": "default", **_SECTIONS},
}
_MOE_TEXT: dict[str, Any] = {
    **_TEXT,
    "model_type": "qwen3_vl_moe_text",
    "num_hidden_layers": 3,
    "moe_intermediate_size": 40,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [1],
}
_VISION = "model.visual.merger.norm.weight"
_PREFIXES = {"model.": "model.language_model."}
_SWEEP: tuple[tuple[str, Any], ...] = (
    ("hidden_size", 96),
    ("intermediate_size", 88),
    ("num_hidden_layers", 2),
    ("num_attention_heads", 12),
    ("num_key_value_heads", 1),
    ("head_dim", 16),
    ("vocab_size", 400),
    ("max_position_embeddings", 128),
    ("hidden_act", "gelu"),
    ("rms_norm_eps", 0.3),
    ("rms_norm_eps", REMOVED),
    ("rope_theta", 700.0),
    ("rope_theta", REMOVED),
    ("rope_scaling", REMOVED),
    ("rope_scaling", {"rope_type": "linear", "factor": 4.0, **_SECTIONS}),
    ("attention_bias", True),
    ("tie_word_embeddings", True),
)


def _config(architecture: str, text: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": str(text["model_type"]).removesuffix("_text"),
        "tie_word_embeddings": False,
        "text_config": text,
        "vision_config": {"hidden_size": 24},
    }


def _qwen3(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of Qwen 3, without the sections, and with the default of theta."""
    model_type = "qwen3_moe" if "num_experts" in config else "qwen3"
    given = config.get("rope_scaling") or {}
    rope = {name: value for name, value in given.items() if name not in _SECTIONS} or None
    return {
        "rope_theta": 500_000.0,
        "norm_topk_prob": True,
        **config,
        "rope_scaling": rope,
        "model_type": model_type,
    }


@dataclass(frozen=True)
class _Stacked(Native):
    """Experts in 3-D tensors.

    Attributes:
        is_transposed: matrices are [in, out], as published; transformers 5 saves [out, in].
    """

    is_transposed: bool = True

    def random_checkpoint(
        self, config: Mapping[str, Any], seed: int
    ) -> tuple[dict[str, Any], Tensors]:
        stacked = Native(self.model, self.to_native, as_saved_by_transformers=True)
        _, tensors = stacked.random_checkpoint(config, seed)
        return dict(config), self._transposed(tensors)

    def load(
        self, config: Mapping[str, Any], tensors: Tensors, max_model_len: int | None
    ) -> Oracle:
        return super().load(config, self._transposed(tensors), max_model_len)

    def _transposed(self, tensors: Tensors) -> Tensors:
        return {
            name: value.transpose(1, 2).contiguous()
            if self.is_transposed and value.ndim == 3
            else value
            for name, value in tensors.items()
        }


_CONFIG = _config("Qwen3VLForConditionalGeneration", _TEXT)
_MOE_CONFIG = _config("Qwen3VLMoeForConditionalGeneration", _MOE_TEXT)

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "qwen3-vl-like",
        _CONFIG,
        Wrapped(Native("Qwen3ForCausalLM", _qwen3), _PREFIXES, _VISION),
        (("tie_word_embeddings", True), *text_sweep(_TEXT, _SWEEP)),
        text_sweep(_TEXT, [("use_sliding_window", True)]),
        without_effect=(_VISION,),
    ),
    Variant(
        "qwen3-vl-moe-like",
        _MOE_CONFIG,
        Wrapped(_Stacked("Qwen3MoeForCausalLM", _qwen3), _PREFIXES, _VISION),
        (
            ("tie_word_embeddings", True),
            *text_sweep(
                _MOE_TEXT,
                (
                    *_SWEEP,
                    ("head_dim", REMOVED),
                    ("moe_intermediate_size", 48),
                    ("num_experts", 7),
                    ("num_experts_per_tok", 3),
                    ("decoder_sparse_step", 2),
                    ("mlp_only_layers", []),
                    ("norm_topk_prob", REMOVED),
                ),
            ),
        ),
        text_sweep(_MOE_TEXT, [("norm_topk_prob", False), ("use_sliding_window", True)]),
        without_effect=(_VISION,),
    ),
    Variant(
        "qwen3-vl-moe-transformers-5-like",
        _MOE_CONFIG,
        Wrapped(_Stacked("Qwen3MoeForCausalLM", _qwen3, is_transposed=False), _PREFIXES, _VISION),
        without_effect=(_VISION,),
    ),
)
