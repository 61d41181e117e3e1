"""Tables of rotary position embeddings (RoPE): cosines and sines of scaled frequencies."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from taco_worker.models.rope import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    NtkScaling,
    PositionGrowth,
    ProportionalScaling,
    RotaryConfig,
    YarnScaling,
)


def cos_sin_table(
    config: RotaryConfig,
    rotary_dim: int,
    num_positions: int,
    device: torch.device,
    *,
    max_length: int | None = None,
    growth: PositionGrowth | None = None,
) -> Tensor:
    """Cosines, then sines, of positions 0 to num_positions - 1.

    Args:
        rotary_dim: numbers of a head that are rotated.
        max_length: longest sequence in tokens that is served, by which long factors are chosen; by
            default num_positions.
        growth: a factor on cosines and sines for each position.

    Returns:
        float32 [num_positions, rotary_dim].

    Raises:
        ValueError: the settings do not fit to rotary_dim.
    """
    longest = num_positions if max_length is None else max_length
    frequencies = inverse_frequencies(config, rotary_dim, longest).to(device)
    positions = torch.arange(num_positions, device=device)
    angles = torch.outer(positions.float(), frequencies)
    factor: float | Tensor = attention_factor(config, longest)
    if growth is not None:
        times = positions // growth.original_max_position_embeddings
        factor = factor * (1 + growth.beta * torch.log1p(times.float())).unsqueeze(1)
    return torch.cat((angles.cos() * factor, angles.sin() * factor), dim=1)


def attention_factor(config: RotaryConfig, max_length: int) -> float:
    """Factor on cosines and sines."""
    match config.scaling:
        case YarnScaling() as scaling:
            return scaling.attention_factor
        case LongScaling() as scaling:
            is_long = scaling.is_long(max_length)
            return scaling.long_attention_factor if is_long else scaling.short_attention_factor
        case _:
            return 1.0


def inverse_frequencies(config: RotaryConfig, rotary_dim: int, max_length: int) -> Tensor:
    """Radians per position, float32 [rotary_dim / 2], highest frequency first.

    Raises:
        ValueError: the settings do not fit to rotary_dim.
    """
    config.check(rotary_dim)
    match config.scaling:
        case None:
            return _frequencies(config.theta, rotary_dim)
        case LinearScaling(factor=factor):
            return _frequencies(config.theta, rotary_dim) / factor
        case DynamicScaling() as scaling:
            factor = _dynamic_factor(scaling, max_length)
            return _frequencies(_scaled_theta(config.theta, factor, rotary_dim), rotary_dim)
        case NtkScaling(original_max_position_embeddings=length):
            doublings = math.ceil(math.log2(max_length / length) + 1)
            factor = max(1, 2**doublings - 1)
            return _frequencies(_scaled_theta(config.theta, factor, rotary_dim), rotary_dim)
        case Llama3Scaling() as scaling:
            return _llama3(_frequencies(config.theta, rotary_dim), scaling)
        case YarnScaling() as scaling:
            return _yarn(config.theta, rotary_dim, scaling)
        case LongScaling() as scaling:
            is_long = scaling.is_long(max_length)
            factors = scaling.long_factors if is_long else scaling.short_factors
            return 1.0 / (torch.tensor(factors) * _wavelengths(config.theta, rotary_dim))
        case ProportionalScaling() as scaling:
            return _proportional(_frequencies(config.theta, rotary_dim), scaling)


def _wavelengths(theta: float, rotary_dim: int) -> Tensor:
    """Positions per radian."""
    return theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)


def _frequencies(theta: float, rotary_dim: int) -> Tensor:
    return 1.0 / _wavelengths(theta, rotary_dim)


def _dynamic_factor(scaling: DynamicScaling, max_length: int) -> float:
    growth = max_length / scaling.original_max_position_embeddings
    return scaling.factor * growth - (scaling.factor - 1) if growth > 1 else 1.0


def _scaled_theta(theta: float, factor: float, rotary_dim: int) -> float:
    """Theta by which the lowest frequency is divided by `factor` (NTK-aware scaling)."""
    return float(theta * factor ** (rotary_dim / (rotary_dim - 2)))


def _llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    wavelengths = 2 * math.pi / frequencies
    # 0 at long wavelengths, which are divided by the factor; 1 at short ones, which are kept.
    keep = (scaling.original_max_position_embeddings / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    keep = keep.clamp(0, 1)
    return (1 - keep) * frequencies / scaling.factor + keep * frequencies


def _yarn(theta: float, rotary_dim: int, scaling: YarnScaling) -> Tensor:
    """Keep dimensions that turn often within the original length; interpolate slow ones."""

    def dimension_that_turns(times: float) -> float:
        length = scaling.original_max_position_embeddings
        return rotary_dim * math.log(length / (times * 2 * math.pi)) / (2 * math.log(theta))

    low = dimension_that_turns(scaling.beta_fast)
    high = dimension_that_turns(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    width = high - low or 0.001
    ramp = (torch.arange(rotary_dim // 2, dtype=torch.float32) - low) / width
    interpolate = ramp.clamp(0, 1)
    frequencies = _frequencies(theta, rotary_dim)
    return interpolate * frequencies / scaling.factor + (1 - interpolate) * frequencies


def _proportional(frequencies: Tensor, scaling: ProportionalScaling) -> Tensor:
    num_turning = int(scaling.proportion * 2 * len(frequencies) // 2)
    turning = torch.arange(len(frequencies)) < num_turning
    return torch.where(turning, frequencies, 0.0) / scaling.factor
