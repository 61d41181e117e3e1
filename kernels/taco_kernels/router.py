"""Configuration of a router of a mixture of experts, as models publish it. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

RouterKind = Literal["softmax", "softmax_topk", "sigmoid", "sparsemixer"]
GroupScore = Literal["max", "sum_of_two"]
# In the order of the kernels' enumerations.
ROUTER_KINDS: tuple[RouterKind, ...] = get_args(RouterKind)
GROUP_SCORES: tuple[GroupScore, ...] = get_args(GroupScore)

# Limits of the CPU kernel (csrc/experts/expert_args.h), which hold on every back end.
MAX_EXPERTS = 1024
MAX_TOP_K = 64


@dataclass(frozen=True, slots=True)
class Router:
    """How a token's experts and their weights follow from the router's logits.

    The `top_k` experts with the greatest scores are chosen, best first. Of equal scores the lower
    index is first, and NaN is the greatest score. The kinds:

    - "softmax": a weight is the expert's probability among all experts (Qwen2Moe, OLMoE,
      DeepSeek-V2); with `renormalize` among the chosen ones (Mixtral). The choice may add a bias
      per expert to the probabilities (ERNIE 4.5).
    - "softmax_topk": the softmax over the chosen logits (GPT-OSS, GraniteMoE).
    - "sigmoid": a weight is the logit's sigmoid. The choice adds a bias per expert to the scores
      (DeepSeek-V3, GLM-4-MoE).
    - "sparsemixer": two experts. The weight of each is its softmax among the logits that are near
      its own; the second softmax leaves out the first expert (PhiMoE).

    Attributes:
        kind: one of ROUTER_KINDS.
        renormalize: the weights are divided by their sum.
        scale: factor on the weights (`routed_scaling_factor`).
        num_groups, top_groups: consecutive experts form groups of equal size; only experts of the
            `top_groups` best groups are chosen.
        group_score: a group's score is the greatest of its experts' scores, or the sum of the two
            greatest.
        jitter: of sparsemixer: a logit s is near the greatest logit m if
            (m - s) / max(|s|, m) <= 2 * jitter.

    Raises:
        ValueError: the fields contradict each other.
    """

    kind: RouterKind
    num_experts: int
    top_k: int
    renormalize: bool = False
    scale: float = 1.0
    num_groups: int = 1
    top_groups: int = 1
    group_score: GroupScore = "max"
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in ROUTER_KINDS or self.group_score not in GROUP_SCORES:
            raise ValueError(
                f"unknown router kind {self.kind!r} or group score {self.group_score!r}; known: "
                f"{', '.join(ROUTER_KINDS)}; {', '.join(GROUP_SCORES)}"
            )
        if not 1 <= self.num_experts <= MAX_EXPERTS:
            raise ValueError(f"a router has 1 to {MAX_EXPERTS} experts, not {self.num_experts}")
        if self.num_groups < 1 or self.num_experts % self.num_groups:
            raise ValueError(
                f"{self.num_experts} experts cannot form {self.num_groups} groups of equal size"
            )
        if not 1 <= self.top_groups <= self.num_groups:
            raise ValueError(
                f"the best {self.top_groups} of {self.num_groups} groups cannot be chosen"
            )
        choices = self.num_experts // self.num_groups * self.top_groups
        if not 1 <= self.top_k <= min(choices, MAX_TOP_K):
            raise ValueError(
                f"top_k must be 1 to {min(choices, MAX_TOP_K)} with {choices} experts to choose "
                f"from, not {self.top_k}"
            )
        if self.kind != "sigmoid" and self.group_score == "sum_of_two":
            raise ValueError(f"a {self.kind} router scores groups by their greatest score")
        if self.group_score == "sum_of_two" and self.num_experts == self.num_groups > 1:
            raise ValueError("groups of one expert have no two scores to sum")
        if self.jitter < 0:
            raise ValueError(f"the jitter of a router must be 0 or above, not {self.jitter}")
        if self.kind == "sparsemixer" and (self.top_k != 2 or self.renormalize):
            raise ValueError("sparsemixer chooses two experts and does not renormalize")

    @property
    def can_have_bias(self) -> bool:
        """Whether a bias may be added to the scores for the choice."""
        return self.kind in ("softmax", "sigmoid")
