"""Activation functions, plain or as the gate of a product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from taco_worker.models.plan.ops.op import Op
from taco_worker.models.plan.slices import Slice

ActivationKind = Literal[
    "silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2", "swiglu_clipped"
]
# What config.json's names mean.
ACTIVATIONS: dict[str, ActivationKind] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "relu2",
}
# Of "swiglu_clipped", unless a config says otherwise.
ALPHA = 1.702


@dataclass(frozen=True, slots=True)
class Activation(Op):
    """out = act(x), or act(gate) * up with x = [gate, up].

    Attributes:
        gated: x holds gate and up side by side, each of out's size.
        alpha, limit: of "swiglu_clipped" (gpt-oss, Phi-3-small): factor in the sigmoid, and bound
            of gate and up; None: unlimited.
    """

    x: Slice
    out: Slice
    kind: ActivationKind
    gated: bool
    alpha: float = ALPHA
    limit: float | None = None

    @property
    def reads(self) -> tuple[Slice, ...]:
        return (self.x,)

    @property
    def writes(self) -> tuple[Slice, ...]:
        return (self.out,)
