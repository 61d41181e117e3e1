"""The options of the decoder: everything in which architectures and sizes differ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from taco_kernels.kv_entry import KVEntry
from taco_worker.models.rope import RotaryConfig


@dataclass(frozen=True, slots=True)
class LearnedPositions:
    """A table of position embeddings; position p is row p + offset."""

    size: int
    offset: int


_MAX_SIZE = 2**24  # larger than in any published model, and than any scaled length
_SIZES = (
    "vocab_size",
    "hidden_size",
    "embedding_size",
    "intermediate_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "max_position_embeddings",
)


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The options of one decoder.

    Attributes:
        embedding_size: width of the token embeddings. If it differs from hidden_size, one
            projection leads into the first layer and another one back to the logits (OPT-350m).
        pre_norm: norms precede attention and MLP; otherwise they follow the residual sum.
        final_norm: whether a norm follows the last layer.
        sliding_windows: per layer, the number of tokens that a token sees, itself included; None
            is all.
        attention_scale: factor on query-key products.
        max_position_embeddings: longest sequence in tokens, rope scaling included.
    """

    vocab_size: int
    hidden_size: int
    embedding_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    positions: RotaryConfig | LearnedPositions
    norm: Literal["rms", "layer"]
    norm_eps: float
    pre_norm: bool
    final_norm: bool
    activation: str
    gated_mlp: bool
    qkv_bias: bool
    attn_out_bias: bool
    mlp_bias: bool
    sliding_windows: tuple[int | None, ...]
    attention_scale: float
    tied_embeddings: bool

    def __post_init__(self) -> None:
        for name in _SIZES:
            size = getattr(self, name)
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise ValueError(f"{name} must be a positive integer, not {size!r}")
            if size > _MAX_SIZE:
                raise ValueError(f"{name} is {size}, and at most {_MAX_SIZE} is supported")
        if not (math.isfinite(self.norm_eps) and self.norm_eps >= 0):
            raise ValueError(f"the norm's epsilon must be 0 or above, not {self.norm_eps!r}")
        if not (math.isfinite(self.attention_scale) and self.attention_scale > 0):
            raise ValueError(f"the attention scale must be above 0, not {self.attention_scale!r}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.num_heads} attention heads cannot share {self.num_kv_heads} KV heads evenly"
            )
        if isinstance(self.positions, RotaryConfig):
            self.positions.check(self.head_dim)
            partial_rotary_factor = self.positions.partial_rotary_factor
            if partial_rotary_factor != 1.0:
                raise ValueError(
                    f"partial_rotary_factor {partial_rotary_factor} is not supported, only 1"
                )
        if len(self.sliding_windows) != self.num_layers:
            raise ValueError(
                f"{len(self.sliding_windows)} sliding windows for {self.num_layers} layers"
            )

    @property
    def kv_entries(self) -> tuple[KVEntry, ...]:
        """What the KV cache holds: one entry for each layer."""
        return (KVEntry(self.num_kv_heads, self.head_dim, self.head_dim),) * self.num_layers
