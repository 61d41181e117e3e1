"""Rotary position embeddings (RoPE): cosines, sines and scaled frequencies."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from taco_worker.models.rope import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    RotaryConfig,
    YarnScaling,
)


class RotaryEmbedding:
    """Cosines and sines of positions, in float32; shared by all layers."""

    def __init__(self, config: RotaryConfig, head_dim: int, device: torch.device) -> None:
        self._frequencies = inverse_frequencies(config, head_dim).to(device)
        self._amplitude = 1.0
        if isinstance(config.scaling, YarnScaling):
            self._amplitude = config.scaling.attention_factor

    def cos_sin(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions [num_tokens] to two float32 [num_tokens, head_dim / 2]."""
        angles = torch.outer(positions.float(), self._frequencies)
        return angles.cos() * self._amplitude, angles.sin() * self._amplitude

    def table(self, num_positions: int) -> Tensor:
        """float32 [num_positions, head_dim] of positions 0 to num_positions - 1, cosines first."""
        positions = torch.arange(num_positions, device=self._frequencies.device)
        return torch.cat(self.cos_sin(positions), dim=1)


def inverse_frequencies(config: RotaryConfig, head_dim: int) -> Tensor:
    """Radians per position, float32 [head_dim / 2], highest frequency first."""
    match config.scaling:
        case None:
            return _frequencies(config.theta, head_dim)
        case LinearScaling(factor=factor):
            return _frequencies(config.theta, head_dim) / factor
        case DynamicScaling() as scaling:
            return _frequencies(_dynamic_theta(config.theta, head_dim, scaling), head_dim)
        case Llama3Scaling() as scaling:
            return _llama3(_frequencies(config.theta, head_dim), scaling)
        case YarnScaling() as scaling:
            return _yarn(config.theta, head_dim, scaling)


def _frequencies(theta: float, head_dim: int) -> Tensor:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    return 1.0 / theta**exponents


def _dynamic_theta(theta: float, head_dim: int, scaling: DynamicScaling) -> float:
    """Theta for the longest served length, factor × original length."""
    stretch = scaling.factor * scaling.factor - (scaling.factor - 1)
    return float(theta * stretch ** (head_dim / (head_dim - 2)))


def _llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    wavelengths = 2 * math.pi / frequencies
    # 0 at long wavelengths, which are divided by the factor; 1 at short ones, which are kept.
    keep = (scaling.original_max_position_embeddings / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    keep = keep.clamp(0, 1)
    return (1 - keep) * frequencies / scaling.factor + keep * frequencies


def _yarn(theta: float, head_dim: int, scaling: YarnScaling) -> Tensor:
    """Keep dimensions that turn often within the original length; interpolate slow ones."""

    def dimension_that_turns(times: float) -> float:
        length = scaling.original_max_position_embeddings
        return head_dim * math.log(length / (times * 2 * math.pi)) / (2 * math.log(theta))

    low = dimension_that_turns(scaling.beta_fast)
    high = dimension_that_turns(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low or 0.001
    ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / width
    interpolate = ramp.clamp(0, 1)
    frequencies = _frequencies(theta, head_dim)
    return interpolate * frequencies / scaling.factor + (1 - interpolate) * frequencies
