"""The quantization of a draft model's weights. Nothing here needs torch."""

from __future__ import annotations

from dataclasses import replace

from taco_proto.config import ModelConfig
from taco_worker.models.config import ModelConfig as CheckpointConfig


def as_for_worker(model: ModelConfig) -> ModelConfig:
    """The model as a worker expects it: `none` is what its checkpoint has."""
    return replace(model, quantization=None) if model.quantization == "none" else model


def or_int8(model: ModelConfig, checkpoint: CheckpointConfig) -> ModelConfig:
    """The model as a worker expects it, in int8 unless it or the flag says another quantization.

    Codes of 4 bits would take twice the memory in 8, and lose digits once more; converted weights
    have what was chosen at the conversion.

    Args:
        checkpoint: the configuration of the checkpoint of `model`.
    """
    has_own = checkpoint.quantization is not None
    if (
        model.quantization is None
        and not has_own
        and checkpoint.files.load_format != "sharded_state"
    ):
        return replace(model, quantization="int8")
    return as_for_worker(model)
