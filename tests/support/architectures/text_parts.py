"""Models for text and images around a text model of another architecture, such as LLaVA."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from support.architectures.cohere import VARIANTS as COHERE
from support.architectures.internlm import VARIANTS as INTERNLM
from support.architectures.latent import VARIANTS as LATENT
from support.architectures.llama import LLAMA
from support.architectures.native import Native
from support.architectures.variant import REMOVED, Variant
from support.architectures.wrapped import Wrapped, text_sweep

_LLAMA: dict[str, Any] = {"model_type": "llama", **LLAMA}
_MISTRAL: dict[str, Any] = {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    **LLAMA,
    "sliding_window": None,
}
_QWEN2: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    **LLAMA,
    "use_sliding_window": False,
    "sliding_window": 7,
    "max_window_layers": 1,
}
# Names of LLaVA's checkpoints as published, and as transformers 5 saves them.
_PUBLISHED = {"model.": "language_model.model.", "lm_head.": "language_model.lm_head."}
_SAVED = {"model.": "model.language_model."}
_IDEFICS = {"model.": "model.text_model."}
_SWEEP: tuple[tuple[str, Any], ...] = (
    ("hidden_size", 96),
    ("num_hidden_layers", 3),
    ("num_key_value_heads", 1),
    ("vocab_size", 400),
    ("rms_norm_eps", REMOVED),
    ("rope_theta", 700.0),
    ("tie_word_embeddings", True),
    ("tie_word_embeddings", REMOVED),
)


def _config(
    architecture: str, model_type: str, text: Mapping[str, Any], field: str = "text_config"
) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": model_type,
        field: text,
        "vision_config": {"hidden_size": 24},
    }


def _variant(
    name: str,
    architecture: str,
    model_type: str,
    text: Mapping[str, Any],
    layout: Wrapped,
    fields: tuple[tuple[str, Any], ...] = (),
) -> Variant:
    return Variant(
        name,
        _config(architecture, model_type, text, layout.field),
        layout,
        text_sweep(text, fields, layout.field),
        text_sweep(text, [("model_type", "unknown")], layout.field)
        if "architectures" not in text
        else (),
        without_effect=(layout.vision,),
    )


_TEXTS = {one.name: one for one in (*COHERE, *INTERNLM, *LATENT)}
_COMMAND_R7B = _TEXTS["command-r7b-like"]
_INTERNLM_2 = _TEXTS["internlm2-like"]
_KIMI = {**_TEXTS["deepseek-v3-like"].config, "q_lora_rank": None, "rope_scaling": None}

VARIANTS: tuple[Variant, ...] = (
    _variant(
        "llava-1.5-like",
        "LlavaForConditionalGeneration",
        "llava",
        _LLAMA,
        Wrapped(Native("LlamaForCausalLM"), _PUBLISHED),
        _SWEEP,
    ),
    _variant(
        "llava-transformers-5-like",
        "LlavaForConditionalGeneration",
        "llava",
        _QWEN2,
        Wrapped(Native("Qwen2ForCausalLM"), _SAVED, "model.multi_modal_projector.linear_1.bias"),
    ),
    _variant(
        "llava-1.6-mistral-like",
        "LlavaNextForConditionalGeneration",
        "llava_next",
        _MISTRAL,
        Wrapped(Native("MistralForCausalLM"), _PUBLISHED, "image_newline"),
        _SWEEP,
    ),
    _variant(
        "llava-next-transformers-5-like",
        "LlavaNextForConditionalGeneration",
        "llava_next",
        _LLAMA,
        Wrapped(Native("LlamaForCausalLM"), _SAVED, "model.image_newline"),
    ),
    _variant(
        "idefics3-like",
        "Idefics3ForConditionalGeneration",
        "idefics3",
        _LLAMA,
        Wrapped(Native("LlamaForCausalLM"), _IDEFICS, "model.connector.modality_projection.bias"),
        _SWEEP,
    ),
    _variant(
        "smolvlm-like",
        "SmolVLMForConditionalGeneration",
        "smolvlm",
        {**_LLAMA, "architectures": ["VLlama3ForCausalLM"], "head_dim": 16},
        Wrapped(Native("LlamaForCausalLM"), _IDEFICS, "model.vision_model.post_layernorm.weight"),
        (("head_dim", 20), *_SWEEP),
    ),
    _variant(
        "internvl3-hf-like",
        "InternVLForConditionalGeneration",
        "internvl",
        _QWEN2,
        Wrapped(Native("Qwen2ForCausalLM"), _PUBLISHED),
        (("use_sliding_window", True), *_SWEEP),
    ),
    _variant(
        "internvl3-like",
        "InternVLChatModel",
        "internvl_chat",
        _QWEN2,
        Wrapped(Native("Qwen2ForCausalLM"), _PUBLISHED, "mlp1.0.weight", "llm_config"),
        _SWEEP,
    ),
    _variant(
        "internvl2-like",
        "InternVLChatModel",
        "internvl_chat",
        _INTERNLM_2.config,
        Wrapped(
            _INTERNLM_2.layout,
            {"model.": "language_model.model.", "output.": "language_model.output."},
            "mlp1.1.bias",
            "llm_config",
        ),
    ),
    _variant(
        "aya-vision-like",
        "AyaVisionForConditionalGeneration",
        "aya_vision",
        {name: value for name, value in _COMMAND_R7B.config.items() if name != "architectures"},
        Wrapped(_COMMAND_R7B.layout, _PUBLISHED),
        (
            ("sliding_window", 5),
            ("logit_scale", REMOVED),
            ("layer_norm_eps", 0.3),
            ("tie_word_embeddings", False),
            ("tie_word_embeddings", REMOVED),
        ),
    ),
    _variant(
        "kimi-vl-like",
        "KimiVLForConditionalGeneration",
        "kimi_vl",
        _KIMI,
        Wrapped(Native("DeepseekV3ForCausalLM"), _PUBLISHED),
        (
            ("q_lora_rank", 28),
            ("n_shared_experts", 2),
            ("first_k_dense_replace", 0),
            ("num_nextn_predict_layers", 0),
            ("routed_scaling_factor", 1.0),
        ),
    ),
)
