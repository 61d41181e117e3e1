"""The gated short convolution of LFM2, a block in the place of attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from taco_worker.models.plan.builder import BLOCK_OUT, Module, PlanBuilder
from taco_worker.models.plan.ops.elementwise import Multiply
from taco_worker.models.plan.ops.recurrence import Convolve
from taco_worker.models.plan.parameters import Source
from taco_worker.models.plan.slices import Slice
from taco_worker.models.plan.views import Channels, View


@dataclass(frozen=True, slots=True)
class ShortConvSpec:
    """out(C * conv(B * x)), where `in_proj` gives B, C and x side by side.

    Attributes:
        in_proj, conv, out: modules.
        width: tokens that the convolution reads.
        bias: of all three modules.
    """

    in_proj: str
    conv: str
    out: str
    width: int
    bias: bool = False


def short_convolution(b: PlanBuilder, x: Slice, spec: ShortConvSpec) -> Slice:
    """The block's output, as wide as the stream."""
    size = b.stream.size
    parts = b.linear(
        x,
        "conv.in_proj",
        [Module(spec.in_proj, 3 * size)],
        bias=spec.bias,
        out=b.buffer("conv", 3 * size),
    )
    before, after, value = (parts.columns(part * size, size) for part in range(3))
    b.add(Multiply(value, before))
    convolution(b, value, "conv.conv", [[Module(spec.conv, size)]], spec.width, bias=spec.bias)
    b.add(Multiply(value, after))
    out = b.buffer(BLOCK_OUT, size)
    return b.linear(value, "conv.out_proj", [Module(spec.out, size)], bias=spec.bias, out=out)


def convolution(
    b: PlanBuilder,
    x: Slice,
    name: str,
    layouts: Sequence[Sequence[Module]],
    width: int,
    *,
    bias: bool = False,
    activation: Literal["silu"] | None = None,
) -> None:
    """Add a convolution of `x` in place, with its parameters and its state.

    Args:
        layouts: modules that store [columns, 1, width] of some columns; a checkpoint has those of
            one layout.
        bias: the modules of the first layout have one.

    Raises:
        ValueError: it reads one token alone.
    """
    if width < 2:
        raise ValueError(f"a convolution reads 2 tokens or more, not {width}")
    first, *others = ([*_sources(modules, "weight", Channels())] for modules in layouts)
    weight = b.parameter(f"{name}.weight", (x.size, width), first, others=others)
    bias_name = None
    if bias:
        sources = [*_sources(layouts[0], "bias")]
        bias_name = b.parameter(f"{name}.bias", (x.size,), sources, initial=0.0)
    b.add(Convolve(x, x, b.state_entry(), weight, bias_name, width, activation))


def _sources(modules: Sequence[Module], kind: str, *views: View) -> Iterator[Source]:
    """The tensors of modules whose rows are side by side."""
    start = 0
    for module in modules:
        yield Source(f"{module.name}.{kind}", start, module.size, views)
        start += module.size
