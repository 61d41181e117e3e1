"""Mixture of experts: the router's choice, and the products of the chosen experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from taco_kernels.router import GroupScore, Router, RouterKind
from taco_worker.models.plan.ops.activation import ALPHA, ActivationKind
from taco_worker.models.plan.ops.op import Op, Shape, optional
from taco_worker.models.plan.slices import Slice


@dataclass(frozen=True, slots=True)
class Route(Op):
    """Chooses `top_k` experts per token; equal scores go to the lower index.

    Attributes:
        logits: one column per expert.
        ids, weights: the chosen experts and their weights, `top_k` columns each, best first; ids
            are int32.
        kind: "softmax" over all experts, then the best; "softmax_topk": the best, then softmax over
            them; "sigmoid"; "sparsemixer" (PhiMoE, Liu et al. 2023).
        num_groups, top_groups: only experts of the best groups are chosen (DeepSeek-V2 and V3).
        group_score: how a group's score follows from its experts' scores.
        bias: parameter [num_experts], added to the scores for the choice but not for the weights.
        renormalize: weights are divided by their sum.
        scale: factor on the weights.
        jitter: of sparsemixer.

    Raises:
        ValueError: the fields contradict each other.
    """

    logits: Slice
    ids: Slice
    weights: Slice
    kind: RouterKind
    top_k: int
    renormalize: bool
    scale: float = 1.0
    num_groups: int = 1
    top_groups: int = 1
    group_score: GroupScore = "max"
    bias: str | None = None
    jitter: float = 0.0

    def __post_init__(self) -> None:
        self.router  # noqa: B018 - checks the fields

    @property
    def router(self) -> Router:
        """The options as kernels take them."""
        return Router(
            self.kind,
            self.logits.size,
            self.top_k,
            self.renormalize,
            self.scale,
            self.num_groups,
            self.top_groups,
            self.group_score,
            self.jitter,
        )

    @property
    def reads(self) -> tuple[Slice, ...]:
        return (self.logits,)

    @property
    def writes(self) -> tuple[Slice, ...]:
        return (self.ids, self.weights)

    @property
    def parameters(self) -> Mapping[str, Shape]:
        return optional((self.bias, (self.logits.size,)))


@dataclass(frozen=True, slots=True)
class Experts(Op):
    """out = sum over the chosen experts e of weight * down_e(act(gate_e(x)) * up_e(x))

    The sum is in the order of the router's choice.

    Attributes:
        gate_up: parameter [num_experts, 2 * intermediate_size, x.size], gate rows first.
        down: parameter [num_experts, out.size, intermediate_size].
        gate_up_bias, down_bias: parameters [num_experts, rows of the matrix], or None.
        alpha, limit: as of `Activation`.
    """

    x: Slice
    ids: Slice
    weights: Slice
    out: Slice
    num_experts: int
    intermediate_size: int
    gate_up: str
    down: str
    activation: ActivationKind
    gate_up_bias: str | None = None
    down_bias: str | None = None
    alpha: float = ALPHA
    limit: float | None = None

    @property
    def reads(self) -> tuple[Slice, ...]:
        return (self.x, self.ids, self.weights)

    @property
    def writes(self) -> tuple[Slice, ...]:
        return (self.out,)

    @property
    def parameters(self) -> Mapping[str, Shape]:
        count, inner = self.num_experts, self.intermediate_size
        return optional(
            (self.gate_up, (count, 2 * inner, self.x.size)),
            (self.down, (count, self.out.size, inner)),
            (self.gate_up_bias, (count, 2 * inner)),
            (self.down_bias, (count, self.out.size)),
        )

    @property
    def flops_per_token(self) -> int:
        inner = self.intermediate_size
        return 2 * self.ids.size * inner * (2 * self.x.size + self.out.size)
