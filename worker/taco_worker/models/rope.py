"""Rotary position (RoPE) settings of a model; `layers.rotary` computes the frequencies."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by `factor` (position interpolation, Chen et al. 2023)."""

    factor: float


@dataclass(frozen=True, slots=True)
class DynamicScaling:
    """NTK-aware scaling of theta, for the longest sequence that is served.

    The published form changes theta as the sequence grows, so that one cache holds keys of several
    thetas. TACO fixes theta: a token's key depends on its position alone and prefixes can be
    shared. Up to the original length theta is unscaled.
    """

    factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class NtkScaling:
    """Scaling of theta by powers of 2 (`get_ntk_alpha` of Qwen's modeling_qwen.py).

    Theta is multiplied by (2^k - 1)^(d / (d - 2)) with k = ceil(log2(length / original) + 1), for
    d rotated numbers of a head and the longest sequence that is served, as `DynamicScaling`.
    """

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
    """Interpolation per dimension and a factor on cos and sin (YaRN, Peng et al. 2023).

    Attributes:
        mscale_all_dim: weight of the amplitude that DeepSeek applies to attention scores; 0: none.
    """

    factor: float
    beta_fast: float
    beta_slow: float
    attention_factor: float
    truncate: bool
    original_max_position_embeddings: int
    mscale_all_dim: float = 0.0

    @property
    def score_factor(self) -> float:
        """Factor on attention scores in DeepSeek's models, the amplitude of `mscale_all_dim`²."""
        return yarn_amplitude(self.factor, self.mscale_all_dim) ** 2


@dataclass(frozen=True, slots=True)
class LongScaling:
    """A separate divisor for each frequency (LongRoPE, Ding et al. 2024; Phi-3).

    The published form changes from short to long factors when a sequence exceeds the original
    length. TACO chooses once, by the longest sequence that it serves: keys can be shared.

    Attributes:
        short_factors, long_factors: one number per frequency.
        short_attention_factor, long_attention_factor: factors on cos and sin.
    """

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    short_attention_factor: float
    long_attention_factor: float
    original_max_position_embeddings: int

    def is_long(self, max_length: int) -> bool:
        """Whether serving sequences of up to `max_length` tokens needs the long factors."""
        return max_length > self.original_max_position_embeddings


@dataclass(frozen=True, slots=True)
class ProportionalScaling:
    """Frequencies spaced over the whole head, of which only the first `proportion` turn."""

    factor: float
    proportion: float


RopeScaling = (
    LinearScaling
    | DynamicScaling
    | NtkScaling
    | Llama3Scaling
    | YarnScaling
    | LongScaling
    | ProportionalScaling
)


@dataclass(frozen=True, slots=True)
class PositionGrowth:
    """A factor on queries that grows with the position p (Llama 4, Ministral 3).

    It is 1 + beta * ln(1 + floor(p / original_max_position_embeddings)).
    """

    beta: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class RotaryConfig:
    """Rotary positions of one kind of layer.

    Attributes:
        theta: base of the frequencies.
        partial_rotary_factor: rotated part of a head.
        sections: frequencies that each axis of the positions turns (M-RoPE, Qwen2-VL, Wang et al.
            2024, section 2.1); empty: one position per token.
    """

    theta: float
    scaling: RopeScaling | None = None
    partial_rotary_factor: float = 1.0
    sections: tuple[int, ...] = ()

    def rotary_dim(self, head_dim: int) -> int:
        """Numbers of a head that are rotated.

        Raises:
            ValueError: as `check`.
        """
        rotary_dim = int(head_dim * self.partial_rotary_factor)
        self.check(rotary_dim)
        return rotary_dim

    def check_whole_heads(self) -> None:
        """Raise ValueError if a part of each head is not rotated."""
        if (partial := self.partial_rotary_factor) != 1:
            raise ValueError(f"partial_rotary_factor {partial} is not supported, only 1")

    def check(self, rotary_dim: int) -> None:
        """Raise ValueError unless these settings fit to `rotary_dim` rotated numbers of a head."""
        if rotary_dim < 2 or rotary_dim % 2:
            raise ValueError(
                f"rotary positions need an even rotary_dim of 2 or more, not {rotary_dim}"
            )
        if self.sections and sum(self.sections) != rotary_dim // 2:
            raise ValueError(
                f"mrope_section {list(self.sections)} must sum to half of rotary_dim {rotary_dim}"
            )
        if isinstance(self.scaling, DynamicScaling | NtkScaling) and rotary_dim == 2:
            raise ValueError("dynamic rope scaling needs a rotary_dim above 2")
        if isinstance(self.scaling, LongScaling):
            for name in ("short_factors", "long_factors"):
                count = len(getattr(self.scaling, name))
                if count != rotary_dim // 2:
                    raise ValueError(
                        f"rope scaling needs {rotary_dim // 2} {name.removesuffix('s')} numbers, "
                        f"not {count}"
                    )


def scaled_max_position_embeddings(rotary: RotaryConfig, max_position_embeddings: int) -> int:
    """The longest sequence in tokens, computed from the config's length.

    Configs with Llama-3 scaling or long factors give the length after scaling, the others the
    length before.
    """
    match rotary.scaling:
        case LinearScaling(factor=factor):
            return int(max_position_embeddings * factor)
        case DynamicScaling() | YarnScaling() as scaling:
            return int(scaling.original_max_position_embeddings * scaling.factor)
        case _:
            return max_position_embeddings


def exact_length(rotary: RotaryConfig, max_length: int) -> int | None:
    """The largest `--max-model-len` that gives the published code's positions at any length.

    Args:
        max_length: longest sequence in tokens that is served.

    Returns:
        A number of tokens; None: `max_length` tokens give them too.
    """
    match rotary.scaling:
        case DynamicScaling() | NtkScaling() | LongScaling() as scaling:
            length = scaling.original_max_position_embeddings
            return length if max_length > length else None
        case _:
            return None


def yarn_amplitude(factor: float, weight: float = 1.0) -> float:
    """`mscale` of YaRN (Peng et al. 2023, section 3.4): 0.1 weight ln(factor) + 1."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0
