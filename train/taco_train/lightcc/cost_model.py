"""Predicts how long an all-reduce takes in each way, and chooses the fastest that is allowed.

Costs of steps are lines over bytes: latency and seconds per byte (Hockney's model). The ring is
that of Patarasu and Yuan (2009), the two-level form that of arXiv 2010.10458, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from taco_train.lightcc.settings import Settings

# A way that rounds or delays gradients must be faster than an exact one by this factor.
_LOSSY_GAIN = 1.03
# Between hosts, buffers up to this size travel in one message (csrc/collective/all_reduce.cpp).
_ONE_MESSAGE_BYTES = 16 << 10
_INDEX_BYTES = 1.0  # of a value that TopK sends: gaps between indices are coded


class Format(StrEnum):
    """How gradients travel between hosts."""

    DENSE = "dense"
    FLOAT16 = "fp16"
    BFLOAT16 = "bf16"
    TOP_K = "TopK"


_FORMATS = {"none": Format.DENSE, "fp16": Format.FLOAT16, "bf16": Format.BFLOAT16}


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to all-reduce a buffer.

    Attributes:
        two_level: hosts first, in shared memory, then between hosts; else one ring of all ranks.
    """

    two_level: bool
    format: Format = Format.DENSE

    def __str__(self) -> str:
        depth = "2D" if self.two_level else "flat"
        return depth if self.format is Format.DENSE else f"{depth} + {self.format}"


@dataclass(frozen=True, slots=True)
class Line:
    """The time of a step: latency in seconds, and seconds per byte."""

    latency: float
    per_byte: float

    def seconds(self, num_bytes: float) -> float:
        return self.latency + self.per_byte * num_bytes

    def __str__(self) -> str:
        return f"{1e3 * self.latency:.3g} ms and {_megabytes(self.per_byte)} MB/s"


def _megabytes(per_byte: float) -> str:
    return f"{1e-6 / per_byte:.0f}" if per_byte else "unlimited"


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured costs of a job, equal on all ranks (see `measure.measure`).

    Attributes:
        num_hosts, ranks_per_host: with unequal hosts, the ranks of the smallest.
        ring: one step of a ring of all ranks, by bytes that each rank sends.
        hosts: one exchange between hosts, by bytes that all ranks of a host send together.
        memory: an all-reduce in a host's shared memory, by bytes of the buffer.
        convert_per_byte: seconds for each byte of float32 that is made float16 and float32 again,
            while all ranks of the host convert; bfloat16 takes no longer.
        top_k: adding to TopK's residual, selection and encoding, by bytes of a rank's shard.
    """

    num_hosts: int
    ranks_per_host: int
    ring: Line
    hosts: Line
    memory: Line
    convert_per_byte: float
    top_k: Line

    @property
    def size(self) -> int:
        return self.num_hosts * self.ranks_per_host

    def __str__(self) -> str:
        return (
            f"{self.num_hosts} hosts, {self.ranks_per_host} ranks each; ring {self.ring}; hosts "
            f"{self.hosts}; memory {self.memory}; float16 {_megabytes(self.convert_per_byte)} MB/s"
            f"; TopK {self.top_k}"
        )


@dataclass(frozen=True, slots=True)
class Buffer:
    """What is to be reduced.

    Attributes:
        is_float32_sum: others are never compressed.
    """

    num_bytes: int
    is_float32_sum: bool = True


def allowed_plans(buffer: Buffer, settings: Settings) -> list[Plan]:
    """The ways between which the settings leave a choice, exact ones first; one at least."""
    is_small = buffer.num_bytes <= settings.two_level_max_bytes
    depths = [True, False] if settings.two_level is None else [settings.two_level]
    if not is_small:
        depths = [False]
    return [
        Plan(two_level, one) for one in _allowed_formats(buffer, settings) for two_level in depths
    ]


def _allowed_formats(buffer: Buffer, settings: Settings) -> list[Format]:
    if not buffer.is_float32_sum:
        return [Format.DENSE]
    has_top_k = buffer.num_bytes >= settings.top_k_min_bytes
    if settings.top_k and has_top_k:
        return [Format.TOP_K]
    if settings.compression != "auto":
        return [_FORMATS[settings.compression]]
    formats = [Format.DENSE, Format.FLOAT16]
    return formats + [Format.TOP_K] * (has_top_k and settings.top_k is None)


def predict(plan: Plan, num_bytes: int, costs: Costs, settings: Settings) -> float:
    """Seconds until all ranks have the sum.

    Args:
        num_bytes: of the buffer, float32 where the plan compresses.
    """
    if costs.num_hosts == 1:
        return costs.memory.seconds(num_bytes)
    others = costs.size - costs.ranks_per_host
    if plan.two_level:
        return _two_level_seconds(plan.format, num_bytes, costs, settings)
    if plan.format is Format.TOP_K:  # each rank sends what it selects to all others
        sent = costs.ranks_per_host * others * _top_k_bytes(num_bytes, settings)
        return costs.hosts.seconds(sent) + costs.top_k.seconds(num_bytes)
    num_steps = 2 * (costs.size - 1)
    if plan.format is Format.DENSE:
        return num_steps * costs.ring.seconds(num_bytes / costs.size)
    converted = 2 * costs.convert_per_byte * num_bytes
    return num_steps * costs.ring.seconds(num_bytes / costs.size / 2) + converted


def _two_level_seconds(chosen: Format, num_bytes: int, costs: Costs, settings: Settings) -> float:
    """The sum of both stages: one thread of a rank moves the bytes of both.

    Chunks of dense sums overlap while a rank waits for the link, but then memory takes little of
    the time. TopK selects when the sum of its host is complete.
    """
    others = costs.num_hosts - 1
    shard = num_bytes / costs.ranks_per_host
    if chosen is Format.TOP_K:
        sent = others * _top_k_bytes(num_bytes, settings)
        between = costs.hosts.seconds(sent) + costs.top_k.seconds(shard)
    else:
        share, convert = (1.0, 0.0) if chosen is Format.DENSE else (0.5, costs.convert_per_byte)
        if num_bytes <= _ONE_MESSAGE_BYTES:
            between = costs.hosts.seconds(others * num_bytes * share)
        else:
            between = 2 * costs.hosts.seconds(others / costs.num_hosts * num_bytes * share)
        between += convert * shard
    return costs.memory.seconds(num_bytes) + between


def _top_k_bytes(num_bytes: float, settings: Settings) -> float:
    """Bytes that TopK makes of a float32 buffer."""
    value_bytes = _INDEX_BYTES + (2 if settings.top_k_fp16 else 4)
    return settings.top_k_ratio * num_bytes / 4 * value_bytes


@dataclass(frozen=True, slots=True)
class Choice:
    """A plan and what was predicted of it and of the others, in seconds."""

    plan: Plan
    seconds: dict[Plan, float]

    def __str__(self) -> str:
        ranked = sorted(self.seconds.items(), key=lambda item: item[1])
        times = ", ".join(f"{plan} {1e3 * seconds:.3g} ms" for plan, seconds in ranked)
        return f"{self.plan} (predicted: {times})"


def choose(buffer: Buffer, costs: Costs, settings: Settings) -> Choice:
    """The fastest plan that the settings allow; an exact one unless compression gains by it."""
    plans = allowed_plans(buffer, settings)
    seconds = {plan: predict(plan, buffer.num_bytes, costs, settings) for plan in plans}
    best = min(seconds, key=seconds.__getitem__)
    exact = [plan for plan in plans if plan.format is Format.DENSE]
    if exact:
        fastest_exact = min(exact, key=seconds.__getitem__)
        if seconds[fastest_exact] <= seconds[best] * _LOSSY_GAIN:
            best = fastest_exact
    return Choice(best, seconds)
