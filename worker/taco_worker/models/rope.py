"""Parses rotary position (RoPE) settings of a config; `layers.rotary` computes the frequencies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by `factor` (position interpolation, Chen et al. 2023)."""

    factor: float


@dataclass(frozen=True, slots=True)
class DynamicScaling:
    """NTK-aware scaling of theta, for the longest length that `factor` allows.

    The published form changes theta as the sequence grows, so that one cache holds keys of several
    thetas. TACO fixes theta: a token's key depends on its position alone and prefixes can be
    shared.
    """

    factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Divides long wavelengths by `factor`, keeps short ones, and blends between (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """Interpolation per dimension and a factor on cos and sin (YaRN, Peng et al. 2023)."""

    factor: float
    beta_fast: float
    beta_slow: float
    attention_factor: float
    truncate: bool
    original_max_position_embeddings: int


RopeScaling = LinearScaling | DynamicScaling | Llama3Scaling | YarnScaling


@dataclass(frozen=True, slots=True)
class RotaryConfig:
    theta: float
    scaling: RopeScaling | None = None


def parse_rotary(hf_config: Mapping[str, Any]) -> RotaryConfig:
    """Read `rope_parameters`, or the older `rope_theta` with `rope_scaling`.

    Raises:
        ValueError: the kind of scaling is unknown, or one of its numbers is missing.
    """
    parameters = hf_config.get("rope_parameters") or {}
    scaling = parameters or hf_config.get("rope_scaling") or {}
    theta = _first_given(parameters.get("rope_theta"), hf_config.get("rope_theta"), 10_000.0)
    if not (math.isfinite(theta) and theta > 0):
        raise ValueError(f"rope_theta must be above 0, not {theta}")
    partial_rotary_factor = parameters.get(
        "partial_rotary_factor", hf_config.get("partial_rotary_factor", 1.0)
    )
    if partial_rotary_factor != 1.0:
        raise ValueError(f"partial_rotary_factor {partial_rotary_factor} is not supported, only 1")
    return RotaryConfig(theta, _parse_scaling(scaling, hf_config))


def _first_given(*values: float | None) -> float:
    return float(next(value for value in values if value is not None))


def scaled_max_position_embeddings(rotary: RotaryConfig, max_position_embeddings: int) -> int:
    """The longest sequence in tokens, computed from the config's length.

    Configs with Llama-3 scaling give the length after scaling, the others the length before.
    """
    match rotary.scaling:
        case LinearScaling(factor=factor):
            return int(max_position_embeddings * factor)
        case DynamicScaling() | YarnScaling() as scaling:
            return int(scaling.original_max_position_embeddings * scaling.factor)
        case _:
            return max_position_embeddings


def _parse_scaling(scaling: Mapping[str, Any], hf_config: Mapping[str, Any]) -> RopeScaling | None:
    kind = scaling.get("rope_type") or scaling.get("type") or "default"

    def number(name: str) -> float:
        value = scaling.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is None or not is_number or not 0 < value < math.inf:
            raise ValueError(f"rope scaling {kind!r} needs a positive {name!r}, not {value!r}")
        return float(value)

    original_length = int(
        scaling.get("original_max_position_embeddings") or hf_config["max_position_embeddings"]
    )
    match kind:
        case "default":
            return None
        case "linear":
            return LinearScaling(number("factor"))
        case "dynamic":
            # Unlike the others, dynamic scaling starts at the config's length.
            return DynamicScaling(number("factor"), int(hf_config["max_position_embeddings"]))
        case "llama3":
            low, high = number("low_freq_factor"), number("high_freq_factor")
            if low >= high:
                raise ValueError(f"rope scaling needs low_freq_factor {low} < high {high}")
            return Llama3Scaling(number("factor"), low, high, original_length)
        case "yarn":
            return YarnScaling(
                factor=number("factor"),
                beta_fast=float(scaling.get("beta_fast") or 32),
                beta_slow=float(scaling.get("beta_slow") or 1),
                attention_factor=_yarn_attention_factor(scaling, number("factor")),
                truncate=bool(scaling.get("truncate", True)),
                original_max_position_embeddings=original_length,
            )
        case _:
            raise ValueError(
                f"unknown rope scaling {kind!r}: known are default, linear, dynamic, llama3, yarn"
            )


def _yarn_attention_factor(scaling: Mapping[str, Any], factor: float) -> float:
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])

    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return mscale(scaling["mscale"]) / mscale(scaling["mscale_all_dim"])
    return mscale(1.0)
