"""Orion, computed by StableLM, and Aquila, which is Llama.

Sources: modeling_orion.py of OrionStarAI/Orion-14B-Base, and vLLM 0.6's
vllm/model_executor/models/orion.py; vLLM 0.6 serves Aquila with its Llama.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from support.architectures.llama import LLAMA, LLAMA_FIELDS
from support.architectures.native import Native
from support.architectures.variant import REMOVED, Variant

_ORION: dict[str, Any] = {
    "architectures": ["OrionForCausalLM"],
    "model_type": "orion",
    **LLAMA,
    "attention_bias": False,
}
_AQUILA: dict[str, Any] = {"architectures": ["AquilaModel"], "model_type": "aquila", **LLAMA}
_AQUILA_2 = {**_AQUILA, "architectures": ["AquilaForCausalLM"]}


def _as_stablelm(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "tie_word_embeddings": False,
        **config,
        "model_type": "stablelm",
        "layer_norm_eps": config.get("rms_norm_eps", 1e-5),
        "partial_rotary_factor": 1.0,
    }


def _as_llama(config: Mapping[str, Any]) -> dict[str, Any]:
    return {**config, "model_type": "llama"}


VARIANTS: tuple[Variant, ...] = (
    Variant(
        "orion-14b-like",
        _ORION,
        Native("StableLmForCausalLM", _as_stablelm),
        (*LLAMA_FIELDS, ("rms_norm_eps", REMOVED), ("num_key_value_heads", 6)),
        rejected=(("attention_bias", True), ("partial_rotary_factor", 0.5)),
    ),
    Variant(
        "aquila-7b-like",
        {**_AQUILA, "num_key_value_heads": 6},
        Native("LlamaForCausalLM", _as_llama),
        (("rms_norm_eps", REMOVED), ("num_key_value_heads", REMOVED)),
    ),
    Variant(
        "aquila2-34b-like",
        {**_AQUILA_2, "rope_scaling": {"type": "linear", "factor": 2.0}},
        Native("LlamaForCausalLM", _as_llama),
        (("rope_scaling", REMOVED), ("num_key_value_heads", 1)),
    ),
)
