"""The README's table: five figures of bench/results, losses included, with machine and interval."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.record import read_best

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Highlight:
    """One row.

    Attributes:
        what: is measured, with its unit.
        result: name of the file, without its ending.
        show: TACO's figure, what it is compared with, and the ratio or the range.
    """

    what: str
    result: str
    show: Callable[[Record], tuple[str, str, str]]


def _peer(
    workload: str, figure: str, ours: str, theirs: str, name: str, decimals: int
) -> Callable[[Record], tuple[str, str, str]]:
    def show(figures: Record) -> tuple[str, str, str]:
        measured = figures["workloads"][workload]["figures"][figure]
        medians = measured["medians"]
        return (
            f"{medians[ours]:.{decimals}f}",
            f"{medians[theirs]:.{decimals}f} ({name})",
            _interval(measured["ratios"][ours][theirs]),
        )

    return show


def _restart(figures: Record) -> tuple[str, str, str]:
    measured = figures["restart"]
    return (
        f"{measured['ttft_ms']:.0f}",
        f"{measured['cold_ttft_ms']:,.0f} (TACO without the disk tier)",
        _interval(measured["ratio"]),
    )


def _killed_worker(figures: Record) -> tuple[str, str, str]:
    measured = figures["one_of_two_is_killed"]
    return (
        f"{measured['stall_max_s']:.2f}",
        "–",
        f"median {measured['stall_p50_s']:.2f}, p99 {measured['stall_p99_s']:.2f}",
    )


HIGHLIGHTS = (
    Highlight(
        "1 stream, bf16: ms per token",
        "peers_bf16_latency",
        _peer("single", "tpot_ms", "taco", "openvino", "OpenVINO GenAI", 1),
    ),
    Highlight(
        "32 requests at once, bf16: tokens/s",
        "peers_batch",
        _peer("batch", "tokens_per_s", "taco", "openvino", "OpenVINO GenAI", 1),
    ),
    Highlight(
        "**slower:** command to first token, 1 GB of weights: s",
        "peers_start",
        _peer("start", "seconds", "taco", "openvino", "OpenVINO GenAI", 2),
    ),
    Highlight(
        "first token of a known conversation after a restart: ms",
        "multi_turn_restart",
        _restart,
    ),
    Highlight(
        "longest pause of 18 streams when one of two workers is killed: s",
        "chaos",
        _killed_worker,
    ),
)


def highlights_table(results: Path) -> Iterator[str]:
    yield "| figure | TACO | beside | ratio, or range | machine |"
    yield "|---|---|---|---|---|"
    for highlight in HIGHLIGHTS:
        record = read_best(results, highlight.result)
        cells = (highlight.what, *highlight.show(record["figures"]), _machine(record))
        yield f"| {' | '.join(cells)} |"


def _interval(ratio: list[float]) -> str:
    return "{:.2f} ({:.2f}–{:.2f})".format(*ratio)


def _machine(record: Record) -> str:
    """Cores and the widest instructions of the processor."""
    machine = record["machine"]
    widest = machine["vector_sets"][-1].upper().replace("AVX512", "AVX-512").replace("_", " ")
    return f"{machine['cores']} cores, {machine['cpu']}, {widest}"
