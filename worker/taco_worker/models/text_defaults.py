"""Fields that the configs of models for text and images leave out of their text part.

transformers writes only the fields of a nested config that differ from the defaults of its class.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_FIELDS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)
# By model type, in the order of _FIELDS; no KV heads: the class has as many as heads.
_SIZES: Mapping[str, tuple[int | None, ...]] = {
    "cohere": (256_000, 8192, 22_528, 40, 64, None, 8192),
    "cohere2": (256_000, 8192, 22_528, 40, 64, None, 8192),
    "glm4v_moe_text": (151_424, 4096, 10_944, 46, 96, 8, 65_536),
    "glm4v_text": (151_552, 4096, 13_696, 40, 32, 2, 32_768),
    "llama": (32_000, 4096, 11_008, 32, 32, None, 2048),
    "mistral": (32_000, 4096, 14_336, 32, 32, 8, 131_072),
    "mllama_text_model": (128_256, 4096, 14_336, 40, 32, 8, 131_072),
    "phi3": (32_064, 3072, 8192, 32, 32, None, 4096),
    "qwen2": (151_936, 4096, 22_016, 32, 32, 32, 32_768),
    "qwen3": (151_936, 4096, 22_016, 32, 32, 32, 32_768),
    "qwen3_5_moe_text": (248_320, 2048, None, 40, 16, 2, 32_768),
    "qwen3_5_text": (248_320, 4096, 12_288, 32, 16, 4, 32_768),
    "qwen3_moe": (151_936, 2048, 6144, 24, 32, 4, 32_768),
    "qwen3_vl_moe_text": (151_936, 2048, 5632, 24, 16, 16, 128_000),
    "qwen3_vl_text": (151_936, 4096, 22_016, 32, 32, 32, 128_000),
}
# By model type of the whole model: what its config class sets in the text part.
_SET_BY_WHOLE_MODEL: Mapping[str, Mapping[str, Any]] = {
    "paligemma": {"use_bidirectional_attention": True},  # over the tokens of the prompt
}
# Text models whose sizes are known.
MODEL_TYPES = tuple(_SIZES)


def set_by_whole_model(model_type: object) -> Mapping[str, Any]:
    """Fields that mean something else in the text part of a whole model of this type."""
    return _SET_BY_WHOLE_MODEL.get(str(model_type), MappingProxyType({}))


def text_defaults(model_type: str) -> Mapping[str, int]:
    """The sizes of the config class of a text model; empty for other models."""
    sizes = zip(_FIELDS, _SIZES.get(model_type, ()), strict=False)
    return MappingProxyType({name: size for name, size in sizes if size is not None})
