"""TACO's goals on one H200, evaluated from the records of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.peers.goals import MET, MISSED

NOT_MEASURED = "not measured"
_BATCH = "decode 128x1024"
_IDLE = ("traced", "idle_share")
# With less KV, launches and the last wave bound a decode, whatever kernel reads it.
_BANDWIDTH_BOUND_MB = 256.0
# Products that are bound by reading their matrix.
_FEW_ROWS = 16
_SMALL_PEERS = ("sdpa_flash", "sdpa_cudnn", "xformers")
# Figures of a part, by name.
Figures = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Goal:
    """A limit of one number.

    Attributes:
        part: the part whose figures `find` reads; `find` returns None if the number is missing.
        at_least: whether higher is better.
    """

    text: str
    part: str
    find: Callable[[Figures], float | None]
    limit: float
    unit: str = ""
    at_least: bool = True

    def outcome(self, figures: Figures) -> tuple[float | None, str]:
        """Returns the number, and MET, MISSED or NOT_MEASURED."""
        value = self.find(figures)
        if value is None:
            return None, NOT_MEASURED
        reached = value >= self.limit if self.at_least else value <= self.limit
        return value, MET if reached else MISSED

    @property
    def wanted(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:,.6g} {self.unit}".rstrip()


def _decode_share(figures: Figures) -> float | None:
    """Returns the worst bandwidth share of the decodes that are bound by reading their KV."""
    shares = [
        line["copy_share"]
        for name, line in figures.items()
        if _is_decode(name) and line["kv_mb"] >= _BANDWIDTH_BOUND_MB
    ]
    return min(shares, default=None)


def _small_decode_ratio(figures: Figures) -> float | None:
    """Returns the worst ratio to the best measured peer among decodes with less KV."""
    ratios = []
    for name, line in figures.items():
        if not _is_decode(name) or line["kv_mb"] >= _BANDWIDTH_BOUND_MB:
            continue
        others = [line.get(peer, {}) for peer in _SMALL_PEERS]
        others.append(figures.get(f"flashinfer: {name}", {}))
        times = [other["us"] for other in others if "us" in other]
        if times:
            ratios.append(line["us"] / min(times))
    return max(ratios, default=None)


def _is_decode(name: str) -> bool:
    """Whether a case is a decode of equal sequences in the model's own type."""
    return name.startswith("decode ") and not {"+", ","} & set(name)


def _right(figures: Figures) -> float | None:
    """Returns the share of cases with a right output."""
    lines = [line for line in figures.values() if "right" in line]
    return sum(line["right"] for line in lines) / len(lines) if lines else None


def _product(name: str) -> int:
    """Returns the product in a name such as "decode 32x1024"."""
    batch, _, length = name.split()[1].partition("x")
    return int(batch) * int(length)


def _itl_beyond_context(figures: Figures) -> float | None:
    """Returns the worst time between tokens of one sequence without the time for its KV."""
    rests = [
        line["itl_ms"] - 3.05e-5 * _product(name)
        for name, line in figures.items()
        if name.startswith("decode 1x")
    ]
    return max(rests, default=None)


def _prefill(figures: Figures) -> float | None:
    rates = [line["tok_per_s"] for name, line in figures.items() if name.startswith("prefill ")]
    return min(rates, default=None)


def _at(*path: str) -> Callable[[Figures], float | None]:
    def find(figures: Figures) -> float | None:
        value: Any = figures
        for name in path:
            if name not in value:
                return None
            value = value[name]
        return float(value)

    return find


def _ready(figures: Figures) -> float | None:
    if "start" not in figures:
        return None
    return float(figures["start"]["made_seconds"] + figures["start"]["first_step_seconds"])


def _failures(figures: Figures) -> float | None:
    """Returns the number of failed tests; None if none failed and a suite was cut short."""
    suites = [line for line in figures.values() if line.get("ran")]
    failed = sum(line["failed"] for line in suites)
    whole = all(line.get("in_time", True) for line in suites)
    return failed if failed or (suites and whole) else None


def _of_bf16(name: str) -> Callable[[Figures], float | None]:
    """The time per token of a quantized model, relative to the same model's in bfloat16."""

    def find(figures: Figures) -> float | None:
        times = [figures.get(f"{one}: decode 1x1024", {}).get("itl_ms") for one in (name, "bf16")]
        return None if None in times else float(times[0] / times[1])

    return find


def _few_rows_of_codes(figures: Figures) -> float | None:
    """Returns the worst bandwidth share of the kernel of codes, of the measured matrices of a layer
    together, for any format and at 16 rows or fewer.
    """
    times: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for name, line in figures.items():
        product, _, rows = name.rpartition(", ")
        if "share" in line and "," not in product and int(rows.split()[0]) <= _FEW_ROWS:
            matrices = times.setdefault((product.rpartition(" ")[0], rows), [])
            matrices.append((line["us"], line["us"] * line["share"]))
    shares = [
        sum(least for _, least in found) / sum(us for us, _ in found) for found in times.values()
    ]
    return min(shares, default=None)


GOALS = (
    Goal("tests that fail on the GPU", "correctness", _failures, 0, at_least=False),
    Goal("attention outputs that are right", "attention", _right, 1),
    Goal("decode attention, of the copy bandwidth", "attention", _decode_share, 0.85),
    Goal(
        "decode attention below 256 MB, of the best peer",
        "attention",
        _small_decode_ratio,
        1.1,
        "times",
        at_least=False,
    ),
    Goal("prefill attention, 8k", "attention", _at("prefill 1x8192", "tflops"), 420, "TFLOP/s"),
    Goal("ITL less 3.05e-5 ms a token", "worker", _itl_beyond_context, 4.5, "ms", at_least=False),
    Goal("products with codes that are right", "quantized", _right, 1),
    Goal("codes at 16 rows, of the copy bandwidth", "quantized", _few_rows_of_codes, 0.6),
    Goal("TPOT of FP8", "quantized", _of_bf16("fp8"), 0.62, "times bf16's", at_least=False),
    Goal(
        "TPOT of 4 bits", "quantized", _of_bf16("4-bit g128"), 0.45, "times bf16's", at_least=False
    ),
    Goal("batch 128, 1k: steps", "worker", _at(_BATCH, "tok_per_s"), 14_000, "tok/s"),
    Goal("batch 128, 1k: LLM", "engine", _at(_BATCH, "tok_per_s"), 14_000, "tok/s"),
    Goal("prefill", "worker", _prefill, 38_000, "tok/s"),
    Goal("device idle, steps", "worker", _at(_BATCH, *_IDLE), 0.03, at_least=False),
    Goal("device idle, LLM", "engine", _at(_BATCH, *_IDLE), 0.03, at_least=False),
    Goal("answers that drafts change", "speculation", _failures, 0, at_least=False),
    Goal("answers with drafts that are right", "speculation", _right, 1),
    Goal(
        "8 drafts verified, batch 1",
        "speculation",
        _at("verify 1x9", "ratio"),
        1.15,
        "times",
        at_least=False,
    ),
    Goal("first token, weights made too", "worker", _ready, 15, "s", at_least=False),
)
