"""Text parts with their own recipes: GLM-4.1V, GLM-4.5V, Llama 3.2 Vision, Phi 4 multimodal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from support.architectures.llama import LLAMA
from support.architectures.native import Native
from support.architectures.phi import long_rope
from support.architectures.variant import REMOVED, Oracle, Tensors, Variant
from support.architectures.wrapped import Wrapped, text_sweep

_BASE: tuple[tuple[str, Any], ...] = (
    ("intermediate_size", 88),
    ("num_hidden_layers", 3),
    ("num_key_value_heads", 1),
    ("vocab_size", 400),
    ("max_position_embeddings", 512),
    ("hidden_act", "gelu"),
    ("rms_norm_eps", 0.3),
    ("rope_theta", 700.0),
)
# GLM rotates half of each head.
_GLM: dict[str, Any] = {
    "model_type": "glm4v_text",
    **LLAMA,
    "hidden_size": 96,
    "attention_bias": True,
    "partial_rotary_factor": 0.5,
    "rope_scaling": {"rope_type": "default", "mrope_section": [1, 1, 2]},
    "pad_token_id": None,
}
_GLM_MOE: dict[str, Any] = {
    **_GLM,
    "model_type": "glm4v_moe_text",
    "head_dim": 20,
    "rope_scaling": {"rope_type": "default", "mrope_section": [1, 2, 2]},
    "use_qk_norm": False,
    "moe_intermediate_size": 40,
    "n_routed_experts": 6,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.7,
    "first_k_dense_replace": 1,
}
_MLLAMA: dict[str, Any] = {
    "model_type": "mllama_text_model",
    **{name: value for name, value in LLAMA.items() if name != "rope_theta"},
    "num_hidden_layers": 4,
    "rope_theta": 500_000.0,
    "cross_attention_layers": [1],
    "pad_token_id": None,
}
_PHI: dict[str, Any] = {
    "architectures": ["Phi4MMForCausalLM"],
    "model_type": "phi4mm",
    **LLAMA,
    "hidden_size": 96,
    "attention_bias": False,
    "mlp_bias": False,
    "lm_head_bias": False,
    "full_attn_mod": 1,
    "interpolate_factor": 1,
    "partial_rotary_factor": 0.75,
    "original_max_position_embeddings": 32,
    "rope_scaling": long_rope(6),
    "sliding_window": 300,
    "tie_word_embeddings": True,
    "pad_token_id": None,
}
_VISUAL = "model.visual.post_layernorm.weight"
_VISION = "vision_model.layernorm_post.weight"
_SAVED = {"model.": "model.language_model."}


def _config(architecture: str, text: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "text_config": text,
        "vision_config": {"hidden_size": 24},
    }


def _glm4(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of GLM 4: where the three axes agree, sections change nothing."""
    given = config.get("rope_scaling") or {}
    rope = {name: value for name, value in given.items() if name != "mrope_section"} or None
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    defaults = {"partial_rotary_factor": 1.0, "head_dim": head_dim, "rms_norm_eps": 1e-5}
    return {**defaults, **config, "rope_scaling": rope, "model_type": "glm4"}


def _glm4_moe(config: Mapping[str, Any]) -> dict[str, Any]:
    defaults = {"partial_rotary_factor": 0.5, "attention_bias": True, "n_shared_experts": 1}
    return {**_glm4({**defaults, **config}), "model_type": "glm4_moe"}


# Suffixes of the tensors of a layer that attends to images.
_CROSS_ATTENTION = (
    *(f"cross_attn.{name}_{kind}.weight" for kind in ("proj", "norm") for name in "qkvo"),
    *("cross_attn_attn_gate", "cross_attn_mlp_gate"),
    *(f"layers.1.mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
    *(f"layers.1.{name}_layernorm.weight" for name in ("input", "post_attention")),
)


@dataclass(frozen=True)
class _Adapted(Native):
    """Matrices of layers beside low-rank adapters, as PEFT names them."""

    def random_checkpoint(
        self, config: Mapping[str, Any], seed: int
    ) -> tuple[dict[str, Any], Tensors]:
        written, tensors = super().random_checkpoint(config, seed)
        adapted: Tensors = {"model.embed_tokens_extend.image_embed.glb_GN": torch.ones(1, 1, 8)}
        for name, value in tensors.items():
            module = name.removesuffix(".weight")
            if not module.endswith("_proj"):
                adapted[name] = value
                continue
            adapted[f"{module}.base_layer.weight"] = value
            for adapter in ("vision", "speech"):
                adapted[f"{module}.lora_A.{adapter}.weight"] = torch.ones(4, value.shape[1])
                adapted[f"{module}.lora_B.{adapter}.weight"] = torch.ones(value.shape[0], 4)
        return written, adapted

    def load(
        self, config: Mapping[str, Any], tensors: Tensors, max_model_len: int | None
    ) -> Oracle:
        weights = {
            name.replace(".base_layer.", "."): value
            for name, value in tensors.items()
            if ".lora_" not in name and "embed_tokens_extend" not in name
        }
        return super().load(config, weights, max_model_len)


def _phi3(config: Mapping[str, Any]) -> dict[str, Any]:
    return {**config, "model_type": "phi3"}


_GLM_CONFIG = _config("Glm4vForConditionalGeneration", _GLM)
_GLM_MOE_CONFIG = _config("Glm4vMoeForConditionalGeneration", _GLM_MOE)
_MLLAMA_CONFIG = _config("MllamaForConditionalGeneration", _MLLAMA)

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "glm-4.1v-like",
        _GLM_CONFIG,
        Wrapped(Native("Glm4ForCausalLM", _glm4), _SAVED, _VISUAL),
        text_sweep(
            _GLM,
            (
                *_BASE,
                ("rms_norm_eps", REMOVED),
                ("rope_scaling", REMOVED),
                ("rope_scaling", {"rope_type": "default", "mrope_section": [2, 0, 2]}),
                ("rope_scaling", {"rope_type": "linear", "factor": 4.0}),
                ("attention_bias", REMOVED),
                ("tie_word_embeddings", True),
            ),
        ),
        text_sweep(
            _GLM,
            (
                ("head_dim", 20),
                ("attention_bias", False),
                ("partial_rotary_factor", 1.0),  # other than the sections
                ("partial_rotary_factor", REMOVED),
                ("rope_scaling", {"rope_type": "default", "mrope_section": [1, 1, 3]}),
            ),
        ),
        without_effect=(_VISUAL,),
    ),
    Variant(
        "glm-4.5v-like",
        _GLM_MOE_CONFIG,
        Wrapped(Native("Glm4MoeForCausalLM", _glm4_moe), _SAVED, _VISUAL),
        text_sweep(
            _GLM_MOE,
            (
                *_BASE,
                ("hidden_size", 72),
                ("rope_scaling", REMOVED),
                ("partial_rotary_factor", REMOVED),
                ("attention_bias", False),
                ("attention_bias", REMOVED),
                ("moe_intermediate_size", 48),
                ("n_routed_experts", 4),
                ("n_shared_experts", 2),
                ("n_shared_experts", REMOVED),
                ("num_experts_per_tok", 3),
                ("n_group", 2),
                ("norm_topk_prob", False),
                ("routed_scaling_factor", 1.0),
                ("first_k_dense_replace", 0),
                ("tie_word_embeddings", True),
            ),
        ),
        text_sweep(_GLM_MOE, [("use_qk_norm", True), ("topk_group", 2)]),
        without_effect=(_VISUAL,),
    ),
    Variant(
        "llama-3.2-vision-like",
        _MLLAMA_CONFIG,
        Wrapped(
            Native("MllamaForCausalLM"),
            {"model.": "language_model.model.", "lm_head.": "language_model.lm_head."},
            _VISION,
        ),
        text_sweep(
            _MLLAMA,
            (
                *_BASE,
                ("hidden_size", 96),
                ("num_attention_heads", 12),
                ("rms_norm_eps", REMOVED),
                ("rope_theta", REMOVED),
                ("rope_scaling", {"rope_type": "linear", "factor": 4.0}),
                ("cross_attention_layers", []),
                ("cross_attention_layers", [0, 3]),
                ("cross_attention_layers", REMOVED),
                ("dropout", 0.5),
                ("pad_token_id", 3),
                ("tie_word_embeddings", REMOVED),
            ),
        ),
        text_sweep(
            _MLLAMA,
            [
                ("head_dim", 20),
                ("tie_word_embeddings", True),
                ("cross_attention_layers", [0, 1, 2, 3]),
            ],
        ),
        without_effect=(_VISION, *_CROSS_ATTENTION),
    ),
    Variant(
        "llama-3.2-vision-transformers-5-like",
        _MLLAMA_CONFIG,
        Wrapped(Native("MllamaForCausalLM"), _SAVED, f"model.{_VISION}"),
        without_effect=(_VISION, *_CROSS_ATTENTION),
    ),
    Variant(
        "phi-4-multimodal-like",
        _PHI,
        _Adapted("Phi3ForCausalLM", _phi3),
        (
            *_BASE,
            ("rope_scaling", REMOVED),
            ("rope_scaling", {**long_rope(6), "attention_factor": 1.3}),
            ("original_max_position_embeddings", 64),
            ("sliding_window", None),
            ("sliding_window", 7),
            ("tie_word_embeddings", False),
        ),
        (
            ("attention_bias", True),
            ("mlp_bias", True),
            ("lm_head_bias", True),
            ("full_attn_mod", 2),
            ("interpolate_factor", 2),
        ),
        without_effect=(
            "glb_GN",
            *(f".lora_{one}.{name}.weight" for one in "AB" for name in ("vision", "speech")),
        ),
    ),
    Variant(
        "phi-4-multimodal-hf-like",
        {
            **_PHI,
            "architectures": ["Phi4MultimodalForCausalLM"],
            "model_type": "phi4_multimodal",
            "original_max_position_embeddings": 256,
            "rope_scaling": None,
        },
        Native("Phi3ForCausalLM", _phi3),
        (
            ("hidden_size", 48),
            ("num_attention_heads", 12),
            ("partial_rotary_factor", 0.5),
            ("partial_rotary_factor", REMOVED),
        ),
    ),
)
