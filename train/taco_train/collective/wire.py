"""Wire formats: how values travel between hosts. Inside a host they are never compressed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Dense:
    """All values, in one format.

    Attributes:
        format: `same` as the tensor, or `float16` or `bfloat16`, which applies to float32 tensors
            and leaves others as they are. float16 turns values beyond 65504 into infinities.
    """

    format: str = "same"

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ValueError(f"wire format is {self.format!r}; it must be one of {list(FORMATS)}")


FORMATS = {"same": 0, "float16": 1, "bfloat16": 2}
DENSE = Dense()
FLOAT16 = Dense("float16")
BFLOAT16 = Dense("bfloat16")


@dataclass(frozen=True)
class TopK:
    """The values with the largest magnitudes; the rest waits in a residual (error feedback).

    Every owner of a shard selects from residual + gradient, so that nothing is lost: what is sent
    and what remains add up exactly. Applies to float32 tensors, and between hosts only: inside one
    host all values are exchanged, and residuals stay as they are.

    Attributes:
        key: of the residual: the same bucket of gradients has the same key in every step.
        ratio: of the values that are sent, above 0 and at most 1.
        values: `float32`, or `float16`: its rounding errors stay in the residual too.
        momentum: factor of momentum correction (arXiv 1712.01887): the residual then collects
            velocities, and the optimizer must have no momentum for these parameters. 0: off.
        warmup_steps: calls with this key during which the ratio falls exponentially from
            `first_ratio` to `ratio`.
    """

    key: str
    ratio: float = 0.01
    values: str = "float32"
    momentum: float = 0.0
    warmup_steps: int = 0
    first_ratio: float = 0.25

    def __post_init__(self) -> None:
        for name in ("ratio", "first_ratio"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(
                    f"top-k: {name} is {getattr(self, name)}; it must be above 0 and at most 1"
                )
        if self.values not in ("float32", "float16"):
            raise ValueError(f"top-k: values is {self.values!r}; it must be float32 or float16")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"top-k: momentum is {self.momentum}; it must be at least 0, below 1")
        if self.warmup_steps < 0:
            raise ValueError(f"top-k: warmup_steps is {self.warmup_steps}; it must not be negative")

    def ratio_at(self, step: int) -> float:
        """The ratio of a call; step 0 is the first one with the key."""
        if step >= self.warmup_steps:
            return self.ratio
        return float(
            self.first_ratio * (self.ratio / self.first_ratio) ** (step / self.warmup_steps)
        )


Wire = Dense | TopK
