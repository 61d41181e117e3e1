"""The logits ops of a plan, as the CPU kernels run them after a step."""

from __future__ import annotations

from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.ops.elementwise import Cap, Scale
from taco_worker.models.plan.ops.linear import Linear


class LogitsHead:
    """The logits ops, of which the kernels run one shape: [projection,] LM head, scale, cap.

    Attributes:
        matrix: None: the plan has no logits.

    Raises:
        ValueError: the plan has others.
    """

    def __init__(self, plan: ModelPlan) -> None:
        self.projection: str | None = None
        self.matrix: str | None = None
        self.scale, self.cap = 1.0, 0.0
        matrices: list[str] = []
        for op in plan.logits:
            match op:
                case Linear() if self.scale == 1.0 and not self.cap:
                    matrices.append(op.weight)
                case Scale() if not self.cap:
                    self.scale *= op.factor
                case Cap() if not self.cap:
                    self.cap = op.cap
                case _:
                    raise ValueError(f"the CPU kernels have no {type(op).__name__} of logits here")
        if not matrices:
            return
        *projections, self.matrix = matrices
        if len(projections) > 1:
            raise ValueError(
                f"the CPU kernels run 2 matrices of logits at most, not {len(matrices)}"
            )
        self.projection = projections[0] if projections else None
