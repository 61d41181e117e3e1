"""The block of Mamba 2, which takes the place of attention (Dao and Gu 2024).

A short convolution of values, keys and queries, the recurrence, a gate on its output, and a norm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.builder import BLOCK_OUT, Module, NormSpec, PlanBuilder
from taco_worker.models.plan.ops.activation import Activation
from taco_worker.models.plan.ops.elementwise import Scale
from taco_worker.models.plan.ops.norm import Norm
from taco_worker.models.plan.ops.recurrence import StateSpace
from taco_worker.models.plan.parameters import Source
from taco_worker.models.plan.short_conv_block import convolution
from taco_worker.models.plan.slices import Slice
from taco_worker.models.plan.views import GroupedRows, NegativeExp


@dataclass(frozen=True, slots=True)
class InputScales:
    """Factors on the parts of the input projection."""

    gate: float = 1.0
    value: float = 1.0
    key: float = 1.0
    query: float = 1.0
    step: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaSpec:
    """Options of one layer.

    Attributes:
        module: has the modules in_proj, conv1d, norm and out_proj, and the tensors A_log, dt_bias
            and D.
        head_dim: columns of a head's value.
        num_groups: keys, each shared by neighbouring heads; also parts that are normed separately.
        state_size: columns of a key.
        width: tokens that the convolution reads.
        norm: of the output; None: it has none.
        norm_comes_first: the norm comes before the gate.
        step_limits: smallest and greatest step size.
    """

    module: str
    num_heads: int
    head_dim: int
    num_groups: int
    state_size: int
    width: int
    norm: NormSpec | None
    norm_comes_first: bool = False
    conv_bias: bool = True
    in_bias: bool = False
    out_bias: bool = False
    step_limits: tuple[float, float] = (0.0, math.inf)
    scales: InputScales = InputScales()

    def __post_init__(self) -> None:
        if self.num_heads % self.num_groups:
            raise ValueError(
                f"{self.num_heads} Mamba heads cannot share {self.num_groups} groups evenly"
            )

    @property
    def size(self) -> int:
        """Columns of all values."""
        return self.num_heads * self.head_dim

    @property
    def keys_size(self) -> int:
        """Columns of all keys."""
        return self.num_groups * self.state_size


def mamba(b: PlanBuilder, x: Slice, spec: MambaSpec) -> Slice:
    """The recurrence over `x`, projected to the width of the stream."""
    size, keys, count = spec.size, spec.keys_size, spec.num_heads
    conv_size = size + 2 * keys
    # The gate and the output are side by side, as `Activation` reads the parts of its product.
    buffer = b.buffer("mamba", conv_size + 2 * size)
    inputs, gate = buffer.columns(0, conv_size), buffer.columns(conv_size, size)
    out = buffer.columns(conv_size + size, size)
    value, key = inputs.columns(0, size), inputs.columns(size, keys)
    query = inputs.columns(size + keys, keys)
    step = _project(b, x, spec, buffer.columns(0, conv_size + size))
    scales = spec.scales
    for part, scale in (
        (gate, scales.gate),
        (value, scales.value),
        (key, scales.key),
        (query, scales.query),
        (step, scales.step),
    ):
        if scale != 1.0:
            b.add(Scale(part, scale))
    convolution(
        b,
        inputs,
        "mamba.conv",
        [[Module(f"{spec.module}.conv1d", conv_size)]],
        spec.width,
        bias=spec.conv_bias,
        activation="silu",
    )
    rates = [Source(f"{spec.module}.A_log", 0, count, (NegativeExp(),))]
    step_bias, skip = ([Source(f"{spec.module}.{name}", 0, count)] for name in ("dt_bias", "D"))
    b.add(
        StateSpace(
            query,
            key,
            value,
            step,
            out,
            b.state_entry(),
            b.parameter("mamba.rates", (count,), rates, initial=-1.0),
            b.parameter("mamba.step_bias", (count,), step_bias, initial=0.0),
            b.parameter("mamba.skip", (count,), skip, initial=1.0),
            count,
            spec.num_groups,
            *spec.step_limits,
        )
    )
    if spec.norm_comes_first:
        _norm(b, spec, out)
    gated = b.buffer("mamba_gated", size)
    b.add(Activation(buffer.columns(conv_size, 2 * size), gated, "silu", gated=True))
    if not spec.norm_comes_first:
        _norm(b, spec, gated)
    return b.linear(
        gated,
        "mamba.out_proj",
        [Module(f"{spec.module}.out_proj", b.stream.size)],
        bias=spec.out_bias,
        out=b.buffer(BLOCK_OUT, b.stream.size),
        shard_unit=spec.head_dim,
    )


def read_mamba(
    fields: ConfigFields,
    module: str,
    norm: NormSpec | None,
    *,
    size: int | None = None,
    **options: Any,
) -> MambaSpec:
    """The block by the names of fields that Bamba introduced.

    Args:
        size: columns of all values; by default a multiple of the stream's.
        options: attributes of the spec that differ from Bamba's.

    Raises:
        ValueError: the heads do not fit the size, or the activation is not SiLU.
    """
    if fields.activation("hidden_act", default="silu") != "silu":
        raise ValueError(f"hidden_act {fields.get('hidden_act')!r} of Mamba layers is not silu")
    count = fields.size("mamba_n_heads", default=128)
    size = size or fields.size("mamba_expand", default=2) * fields.size("hidden_size")
    given = fields.get("mamba_d_head", default="auto")
    head_dim = size // count if given == "auto" else fields.size("mamba_d_head")
    if count * head_dim != size:
        raise ValueError(f"{count} Mamba heads of {head_dim} columns do not fit {size} columns")
    bias = fields.flag("mamba_proj_bias", default=False)
    common: dict[str, Any] = {
        "num_heads": count,
        "head_dim": head_dim,
        "num_groups": fields.size("mamba_n_groups", default=1),
        "state_size": fields.size("mamba_d_state", default=256),
        "width": fields.size("mamba_d_conv", default=4),
        "conv_bias": fields.flag("mamba_conv_bias", default=True),
        "in_bias": bias,
        "out_bias": bias,
        "step_limits": read_step_limits(fields),
    }
    return MambaSpec(module=module, norm=norm, **common | options)


def read_step_limits(fields: ConfigFields) -> tuple[float, float]:
    """The limits of the step size.

    Raises:
        ValueError: they are not two numbers, 0 or above and in order.
    """
    given = fields.get("time_step_limit", default=[0.0, math.inf])
    items = given if isinstance(given, list) else []
    # transformers 5 writes infinity as an object.
    limits = [math.inf if one == {"__float__": "Infinity"} else one for one in items]
    are_numbers = all(isinstance(one, int | float) for one in limits)
    if not are_numbers or len(limits) != 2 or not 0 <= limits[0] <= limits[1]:
        raise ValueError(f"time_step_limit must be two numbers in order, not {given!r:.100}")
    return float(limits[0]), float(limits[1])


def _project(b: PlanBuilder, x: Slice, spec: MambaSpec, out: Slice) -> Slice:
    """The products of `x`, and the logits of the step size.

    The logits are a matrix by themselves, since the recurrence multiplies their rounding errors.
    """
    name, size, count = f"{spec.module}.in_proj", spec.size, spec.num_heads
    conv_size = out.size - size
    total = out.size + count

    def part(start: int, rows: int) -> Module:
        return Module(name, rows, (GroupedRows(1, total, start, rows),))

    parts = [part(size, conv_size), part(0, size)]  # stored after the gate, and the gate
    b.linear(x, "mamba.in_proj", parts, bias=spec.in_bias, out=out)
    logits = b.buffer("mamba_steps", count)
    return b.linear(x, "mamba.steps", [part(out.size, count)], bias=spec.in_bias, out=logits)


def _norm(b: PlanBuilder, spec: MambaSpec, x: Slice) -> None:
    """Norm each group of `x` in place."""
    if spec.norm is None:
        return
    source = Source(f"{spec.module}.norm.weight", 0, x.size)
    weight = b.parameter("mamba.norm.weight", (x.size,), [source], initial=1.0)
    group = None if spec.num_groups == 1 else x.size // spec.num_groups
    b.add(Norm(x, x, spec.norm.kind, spec.norm.eps, weight, None, group, shares_weight=False))
