"""Rotary position settings of GGUF files, as config.json has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taco_worker.quant.gguf.config.metadata import Metadata
from taco_worker.quant.gguf.tensor_names import ROPE_FACTORS

_FACTORS, _LONG, _SHORT = ROPE_FACTORS


def rope_settings(metadata: Metadata, factors: Mapping[str, list[float]]) -> dict[str, Any]:
    """`rope_theta`, and `rope_scaling` if positions are scaled.

    Factors of frequencies are a tensor: Llama 3's are the same at all lengths, LongRoPE has one
    list for short and one for long sequences.

    Raises:
        ValueError: a setting is missing, or unknown.
    """
    theta = metadata.number("rope.freq_base", 10_000.0)
    scaling = _scaling(metadata, factors)
    return (
        {"rope_theta": theta}
        if scaling is None
        else {
            "rope_theta": theta,
            "rope_scaling": scaling,
        }
    )


def _scaling(metadata: Metadata, factors: Mapping[str, list[float]]) -> dict[str, Any] | None:
    length = metadata.size("context_length")
    original = metadata.optional_size("rope.scaling.original_context_length")
    if _FACTORS in factors:
        same = {"short_factor": factors[_FACTORS], "long_factor": factors[_FACTORS]}
        return {
            "rope_type": "longrope",
            **same,
            "attention_factor": 1.0,
            "original_max_position_embeddings": length,
        }
    if _LONG in factors and _SHORT in factors:
        settings = {
            "rope_type": "longrope",
            "short_factor": factors[_SHORT],
            "long_factor": factors[_LONG],
            "original_max_position_embeddings": original or length,
        }
        amplitude = metadata.optional_number("rope.scaling.attn_factor")
        return settings if amplitude is None else {**settings, "attention_factor": amplitude}
    # Files of 2023 have a factor without a type, which is linear.
    kind = metadata.text("rope.scaling.type", "linear")
    factor = metadata.optional_number("rope.scaling.factor")
    if factor is None:
        factor = metadata.optional_number("rope.scale_linear")
    match kind:
        case "none" | "longrope":
            return None
        case "linear":
            is_scaled = factor not in (None, 0.0, 1.0)
            return {"rope_type": "linear", "factor": factor} if is_scaled else None
        case "yarn":
            return _yarn(metadata, factor, original or length)
    raise ValueError(f"{metadata.architecture}.rope.scaling.type {kind!r:.50} is not supported")


def _yarn(metadata: Metadata, factor: float | None, original: int) -> dict[str, Any]:
    if not factor:
        raise ValueError(f"it has no key '{metadata.architecture}.rope.scaling.factor'")
    optional = {
        "beta_fast": metadata.optional_number("rope.scaling.yarn_beta_fast"),
        "beta_slow": metadata.optional_number("rope.scaling.yarn_beta_slow"),
        "attention_factor": metadata.optional_number("rope.scaling.yarn_attn_factor"),
    }
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
        **{name: value for name, value in optional.items() if value is not None},
    }
