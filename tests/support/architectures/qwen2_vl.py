"""The text part of Qwen2-VL: Qwen2 with input embeddings and positions on three axes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLTextConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLTextModel

from support.architectures.llama import LLAMA
from support.architectures.native import Native
from support.architectures.variant import Variant

_QWEN_2_VL: dict[str, Any] = {
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "model_type": "qwen2_vl",
    **LLAMA,
    # Pairs of dimensions that turn with the time, the row and the column of a patch.
    "rope_scaling": {"type": "mrope", "mrope_section": [1, 2, 3]},
    "use_sliding_window": False,
    "sliding_window": 7,
    "max_window_layers": 2,
    "vision_config": {"hidden_size": 24},
}


def _text_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of Qwen2: where the three axes agree, sections change nothing."""
    left_out = ("rope_scaling", "vision_config", "architectures", "torch_dtype")
    fields = {name: value for name, value in config.items() if name not in left_out}
    return {**fields, "model_type": "qwen2"}


def _vision(config: Mapping[str, Any]) -> dict[str, Tensor]:
    return {"visual.merger.ln_q.weight": torch.ones(24)}


VARIANTS: tuple[Variant, ...] = (
    Variant(
        "qwen2-vl-like",
        _QWEN_2_VL,
        Native("Qwen2ForCausalLM", _text_fields, ignored=_vision),
        (("rope_theta", 700.0), ("num_key_value_heads", 1), ("tie_word_embeddings", True)),
        without_effect=("visual.merger.ln_q.weight",),
    ),
)


def reference_of_inputs(path: Path) -> Callable[[Tensor, Tensor], Tensor]:
    """The fp32 logits [n, vocab] of input embeddings [n, hidden] at positions [3, n]."""
    config = json.loads((path / "config.json").read_text())
    tensors = {name: value.float() for name, value in load_file(path / "model.safetensors").items()}
    fields = {**_text_fields(config), "model_type": "qwen2_vl_text"}
    fields["rope_scaling"] = dict(config["rope_scaling"])
    text_config = Qwen2VLTextConfig(**fields)
    text_config._attn_implementation = "eager"
    model = Qwen2VLTextModel(text_config).eval()
    weights = {
        name.removeprefix("model."): value
        for name, value in tensors.items()
        if name.startswith("model.")
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
