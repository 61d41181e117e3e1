"""Llama 3.2 Vision, the text part: Llama without the layers that attend to images alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.decoder_block import LLAMA_NAMES, decoder
from taco_worker.models.plan.llama_block import llama_spec
from taco_worker.models.plan.model_plan import ModelPlan, TensorNames
from taco_worker.models.plan.views import GroupedRows

_CROSS_ATTENTION_LAYERS = [3, 8, 13, 18, 23, 28, 33, 38]
# Rows behind the vocabulary, for the token that is replaced by an image.
_IMAGE_ROWS = 8


def plan(fields: ConfigFields, architecture: str) -> ModelPlan:
    fields.only("tie_word_embeddings", False)
    fields.only("head_dim", fields.size("hidden_size") // fields.size("num_attention_heads"))
    fields.needs("num_key_value_heads")
    skipped = _cross_attention_layers(fields)
    layers = [one for one in range(fields.size("num_hidden_layers")) if one not in skipped]
    if not layers:
        raise ValueError("cross_attention_layers has all layers")
    spec = llama_spec(fields, eps=1e-5, default_theta=500_000.0, names=_names(skipped))
    size = spec.sizes.vocab_size
    spec = replace(
        spec,
        sizes=replace(spec.sizes, num_layers=len(layers)),
        stored_layers=layers,
        embedding_views=(GroupedRows(1, size + _IMAGE_ROWS, 0, size),),
    )
    return decoder(architecture, spec)


def _cross_attention_layers(fields: ConfigFields) -> Sequence[int]:
    given = fields.get("cross_attention_layers", default=_CROSS_ATTENTION_LAYERS)
    if not isinstance(given, list) or not all(type(one) is int for one in given):
        raise ValueError(f"cross_attention_layers must be a list of layers, not {given!r:.100}")
    return given


def _names(skipped: Sequence[int]) -> TensorNames:
    numbers = "|".join(map(str, skipped))
    ignored = rf"^(language_model\.)?model\.(language_model\.)?layers\.({numbers})\."
    return replace(LLAMA_NAMES, ignored=(*LLAMA_NAMES.ignored, *([ignored] if skipped else [])))
