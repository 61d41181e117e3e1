"""Qwen2-VL and Qwen2.5-VL, the text part: input embeddings, and rotary positions on three axes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from safetensors.torch import load_file
from torch import Tensor
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLTextModel
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLTextConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLTextModel

from support.architectures.llama import LLAMA
from support.architectures.native import Native
from support.architectures.variant import REMOVED, Variant
from support.architectures.wrapped import Wrapped

_TEXT_MODELS: dict[str, tuple[Any, Any]] = {
    "Qwen2VLForConditionalGeneration": (Qwen2VLTextConfig, Qwen2VLTextModel),
    "Qwen2_5_VLForConditionalGeneration": (Qwen2_5_VLTextConfig, Qwen2_5_VLTextModel),
}
# Pairs of dimensions that turn with the time, the row and the column of a patch.
_SECTIONS: dict[str, Any] = {"type": "mrope", "mrope_section": [1, 2, 3]}
_WINDOWS: dict[str, Any] = {
    "use_sliding_window": False,
    "sliding_window": 7,
    "max_window_layers": 1,
}


def _config(architecture: str, model_type: str) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": model_type,
        **LLAMA,
        "rope_scaling": _SECTIONS,
        **_WINDOWS,
        "vision_config": {"hidden_size": 24},
    }


def _text_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of Qwen2: where the three axes agree, sections change nothing."""
    left_out = ("rope_scaling", "rope_parameters", "vision_config", "architectures", "torch_dtype")
    fields = {name: value for name, value in config.items() if name not in left_out}
    parameters = config.get("rope_parameters") or {}
    theta = {name: value for name, value in parameters.items() if name == "rope_theta"}
    return {**fields, **theta, "model_type": "qwen2"}


_VISION = "visual.merger.ln_q.weight"


def _vision(config: Mapping[str, Any]) -> dict[str, Tensor]:
    return {_VISION: torch.ones(24)}


_TEXT = Native("Qwen2ForCausalLM", _text_fields, ignored=_vision)
_FIELDS: tuple[tuple[str, Any], ...] = (
    ("intermediate_size", 88),
    ("num_hidden_layers", 3),
    ("vocab_size", 400),
    ("max_position_embeddings", 128),
    ("sliding_window", 5),
    ("num_key_value_heads", 1),
    ("hidden_act", "gelu"),
    ("rms_norm_eps", 0.3),
    ("rope_theta", 700.0),
    ("tie_word_embeddings", True),
    ("use_sliding_window", True),
    ("max_window_layers", 2),
    # These change nothing where the three axes agree: see `INPUT_FIELDS`.
    ("rope_scaling", {"type": "mrope", "mrope_section": [2, 0, 4]}),
    ("rope_scaling", {"rope_type": "default", "type": "mrope", "mrope_section": [1, 2, 3]}),
)
# Sections that are missing, are not three, or do not fit to the size of a head.
_REJECTED: tuple[tuple[str, Any], ...] = (
    ("hidden_size", 96),
    ("num_attention_heads", 12),
    ("rope_scaling", {"type": "mrope", "mrope_section": [2, 2, 3]}),
    ("rope_scaling", {"type": "mrope", "mrope_section": [2, 4]}),
    ("rope_scaling", {"type": "mrope", "mrope_section": [2, -1, 5]}),
    ("rope_scaling", {**_SECTIONS, "mrope_interleaved": True}),
    ("rope_scaling", {"type": "default"}),
    ("rope_scaling", REMOVED),
)
_YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
# A sweep for `reference_of_inputs`, whose model has other defaults than Qwen2.
INPUT_FIELDS: tuple[tuple[str, Any], ...] = (
    *_FIELDS,
    ("rms_norm_eps", REMOVED),
    ("rope_theta", REMOVED),
    ("max_window_layers", REMOVED),
    ("rope_scaling", {**_SECTIONS, **_YARN}),
    ("rope_scaling", {**_SECTIONS, "rope_type": "linear", "factor": 4.0}),
)
_NESTED: dict[str, Any] = {
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "model_type": "qwen2_vl",
    "text_config": {
        "model_type": "qwen2_vl_text",
        **{name: value for name, value in LLAMA.items() if name != "rope_theta"},
        "rope_parameters": {**_SECTIONS, "rope_type": "default", "rope_theta": 10_000.0},
        **_WINDOWS,
        "sliding_window": None,
    },
    "vision_config": {"hidden_size": 24},
}

VARIANTS: tuple[Variant, ...] = (
    Variant(
        "qwen2-vl-like",
        _config("Qwen2VLForConditionalGeneration", "qwen2_vl"),
        _TEXT,
        _FIELDS,
        _REJECTED,
        without_effect=(_VISION,),
    ),
    Variant(
        "qwen2-vl-transformers-5-like",
        _NESTED,
        Wrapped(
            Native("Qwen2ForCausalLM", _text_fields),
            {"model.": "model.language_model."},
            vision=f"model.{_VISION}",
        ),
        without_effect=(_VISION,),
    ),
    Variant(
        "qwen2.5-vl-like",
        _config("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl"),
        _TEXT,
        (("use_sliding_window", True), ("rope_theta", 700.0)),
        (("rope_scaling", REMOVED),),
        without_effect=(_VISION,),
    ),
)


def reference_of_inputs(path: Path) -> Callable[[Tensor, Tensor], Tensor]:
    """The fp32 logits [n, vocab] of input embeddings [n, hidden] at positions [3, n]."""
    config = json.loads((path / "config.json").read_text())
    config_class, model_class = _TEXT_MODELS[config["architectures"][0]]
    fields = config.get("text_config", config)
    rope = {name: fields[name] for name in ("rope_scaling", "rope_parameters") if name in fields}
    text_config = config_class(**{**_text_fields(fields), **rope, "model_type": "text"})
    text_config._attn_implementation = "eager"
    model = model_class(text_config).eval()
    tensors = {
        name.replace("model.language_model.", "model."): value.float()
        for name, value in load_file(path / "model.safetensors").items()
    }
    weights = {
        name.removeprefix("model."): value
        for name, value in tensors.items()
        if name.startswith("model.") and not name.endswith(_VISION)
    }
    model.load_state_dict(weights, strict=True)
    head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"])

    @torch.no_grad()
    def logits(embeddings: Tensor, positions: Tensor) -> Tensor:
        hidden = model(
            inputs_embeds=embeddings.float()[None],
            position_ids=positions[:, None],
            use_cache=False,
        ).last_hidden_state[0]
        return functional.linear(hidden, head)

    return logits
