"""The block of linear attention with the gated delta rule, which takes the place of attention.

A short convolution of queries, keys and values, the recurrence, a norm of each head's output, and a
gate on it: Gated DeltaNet (Yang et al. 2024), or with low-rank gates Kimi Delta Attention (Kimi
Team 2025, "Kimi Linear").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.builder import BLOCK_OUT, Module, NormSpec, PlanBuilder, rms
from taco_worker.models.plan.decoder_block import Mixer
from taco_worker.models.plan.hybrid_layers import recurrent_layers
from taco_worker.models.plan.model_plan import TensorNames
from taco_worker.models.plan.ops.activation import Activation
from taco_worker.models.plan.ops.elementwise import Gate
from taco_worker.models.plan.ops.recurrence import DeltaRule
from taco_worker.models.plan.parameters import Source
from taco_worker.models.plan.short_conv_block import convolution
from taco_worker.models.plan.slices import Slice
from taco_worker.models.plan.views import Flatten, NegativeExp


@dataclass(frozen=True, slots=True)
class DeltaHeads:
    """Numbers of heads, and columns of a head; `DeltaRule` explains the numbers."""

    num_heads: int
    num_key_heads: int
    key_dim: int
    value_dim: int

    def __post_init__(self) -> None:
        if self.num_heads % self.num_key_heads:
            raise ValueError(
                f"{self.num_heads} heads of linear attention cannot share {self.num_key_heads} key "
                "heads evenly"
            )

    @property
    def keys_size(self) -> int:
        """Columns of all keys."""
        return self.num_key_heads * self.key_dim

    @property
    def values_size(self) -> int:
        """Columns of all values."""
        return self.num_heads * self.value_dim

    @property
    def qkv_size(self) -> int:
        return 2 * self.keys_size + self.values_size


@dataclass(frozen=True, slots=True)
class LowRank:
    """A product of two matrices: up(down(x))."""

    down: Module
    up: Module


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNetSpec:
    """Options of one layer.

    Attributes:
        prefix: module with the stored tensors A_log and dt_bias.
        qkv: modules that hold the queries, keys and values.
        gate: module of the output's gate, one column for each of the output.
        beta: module of the logits of beta.
        decay: module of the logits of the decay.
        convolutions: layouts of the convolution's modules; a checkpoint has one of them.
        width: tokens that the convolution reads.
        norm: module of the norm of each head's output, with the same weights for all heads.
        out: module of the output projection.
        beta_scale: as of `DeltaRule`.
        gate_kind: activation of the gate.
        rates_shape: of A_log; by default [num_heads].
    """

    prefix: str
    heads: DeltaHeads
    qkv: Sequence[Module]
    gate: Module | LowRank
    beta: Module
    decay: Module | LowRank
    convolutions: Sequence[Sequence[Module]]
    width: int
    norm: str
    norm_spec: NormSpec
    out: Module
    beta_scale: float = 1.0
    gate_kind: Literal["silu", "sigmoid"] = "silu"
    rates_shape: tuple[int, ...] | None = None


def delta_net(b: PlanBuilder, x: Slice, spec: DeltaNetSpec) -> Slice:
    """Linear attention of `x`, projected to the width of the stream."""
    heads, keys, values = spec.heads, spec.heads.keys_size, spec.heads.values_size
    # The gate and the output are side by side, as `Activation` reads the parts of its product.
    buffer = b.buffer("delta", 2 * keys + 3 * values)
    qkv = buffer.columns(0, heads.qkv_size)
    gate = buffer.columns(qkv.size, values)
    out = buffer.columns(qkv.size + values, values)
    decay, beta = _project(b, x, spec, qkv, gate)
    convolution(b, qkv, "delta.conv", spec.convolutions, spec.width, activation="silu")
    count, shape = heads.num_heads, spec.rates_shape
    views = (NegativeExp(),) if shape is None else (Flatten(shape), NegativeExp())
    rates = [Source(f"{spec.prefix}.A_log", 0, count, views)]
    bias = [Source(f"{spec.prefix}.dt_bias", 0, decay.size)]
    b.add(
        DeltaRule(
            qkv.columns(0, keys),
            qkv.columns(keys, keys),
            qkv.columns(2 * keys, values),
            decay,
            beta,
            out,
            b.state_entry(),
            b.parameter("delta.rates", (count,), rates, initial=-1.0),
            b.parameter("delta.decay_bias", (decay.size,), bias, initial=0.0),
            count,
            heads.num_key_heads,
            spec.beta_scale,
        )
    )
    b.head_norm(out, "delta.norm", spec.norm, spec.norm_spec, heads.value_dim)
    if spec.gate_kind == "silu":
        gated = b.buffer("delta_gated", values)
        b.add(Activation(buffer.columns(gate.start, 2 * values), gated, "silu", gated=True))
    else:
        gated = out
        b.add(Gate(gated, gate))
    y = b.buffer(BLOCK_OUT, b.stream.size)
    return b.linear(gated, "delta.out_proj", [spec.out], out=y, shard_unit=heads.value_dim)


def read_delta_heads(fields: ConfigFields, *defaults: int) -> DeltaHeads:
    """`defaults`: of configs without a field, in the order of the attributes."""
    names = ("num_value_heads", "num_key_heads", "key_head_dim", "value_head_dim")
    pairs = zip(names, defaults or [None] * len(names), strict=True)
    return DeltaHeads(*(fields.size(f"linear_{name}", default=value) for name, value in pairs))


def separate_modules(
    prefix: str,
    heads: DeltaHeads,
    hidden_size: int,
    *,
    gate: Module | LowRank,
    decay: Module | LowRank,
    width: int,
    eps: float,
) -> DeltaNetSpec:
    """Queries, keys and values have a projection and a convolution each (FLA's names).

    transformers 5 may save one convolution.
    """
    sizes = {"q": heads.keys_size, "k": heads.keys_size, "v": heads.values_size}
    separate = [Module(f"{prefix}.{name}_conv1d", size) for name, size in sizes.items()]
    return DeltaNetSpec(
        prefix=prefix,
        heads=heads,
        qkv=[Module(f"{prefix}.{name}_proj", size) for name, size in sizes.items()],
        gate=gate,
        beta=Module(f"{prefix}.b_proj", heads.num_heads),
        decay=decay,
        convolutions=[separate, [Module(f"{prefix}.conv1d", heads.qkv_size)]],
        width=width,
        norm=f"{prefix}.o_norm",
        norm_spec=rms(eps),
        out=Module(f"{prefix}.o_proj", hidden_size),
    )


def mixers(fields: ConfigFields, spec: DeltaNetSpec, period: int = 4) -> list[Mixer | None]:
    """The block of each layer by `layer_types`; None: the layer has full attention.

    Args:
        period: without layer_types, every `period`-th layer has full attention.

    Raises:
        ValueError: a type is unknown.
    """
    is_linear = recurrent_layers(fields, ("linear_attention",))
    if is_linear is None:
        num_layers = fields.size("num_hidden_layers")
        is_linear = [(layer + 1) % period != 0 for layer in range(num_layers)]
    return [partial(delta_net, spec=spec) if one else None for one in is_linear]


def renamed_in_layers(
    names: TensorNames, num_layers: int, renamed: Mapping[str, str]
) -> TensorNames:
    """The names with other modules in each layer.

    Args:
        renamed: stored modules inside a layer, and what they are in the plan.
    """
    layers = (f"model.layers.{layer}." for layer in range(num_layers))
    added = [
        (f"{layer}{old}.", f"{layer}{new}.") for layer in layers for old, new in renamed.items()
    ]
    return replace(names, renamed_prefixes=(*added, *names.renamed_prefixes))


def _project(
    b: PlanBuilder, x: Slice, spec: DeltaNetSpec, qkv: Slice, gate: Slice
) -> tuple[Slice, Slice]:
    """All products of `x`; returns the logits of the decay and of beta.

    Those of a number per head are a matrix by themselves: checkpoints do not quantize it.
    """
    heads = spec.heads.num_heads
    if isinstance(spec.gate, LowRank):
        b.linear(x, "delta.in_proj", spec.qkv, out=qkv)
        _low_rank(b, x, "delta.gate", spec.gate, gate)
    else:
        both = Slice(qkv.buffer, qkv.start, qkv.size + gate.size)
        b.linear(x, "delta.in_proj", [*spec.qkv, spec.gate], out=both)
    if isinstance(spec.decay, LowRank):
        decay = b.buffer("delta_decay", spec.decay.up.size)
        _low_rank(b, x, "delta.decay", spec.decay, decay)
        logits = b.buffer("delta_gates", heads)
        return decay, b.linear(x, "delta.gates", [spec.beta], out=logits)
    logits = b.buffer("delta_gates", 2 * heads)
    b.linear(x, "delta.gates", [spec.beta, spec.decay], out=logits)
    return logits.columns(heads, heads), logits.columns(0, heads)


def _low_rank(b: PlanBuilder, x: Slice, name: str, parts: LowRank, out: Slice) -> None:
    narrow = b.buffer("delta_low_rank", parts.down.size)
    b.linear(x, f"{name}_down", [parts.down], out=narrow)
    b.linear(narrow, f"{name}_up", [parts.up], out=out)
