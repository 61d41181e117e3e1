"""The README's table: figures of bench/results, losses included, with machine and interval."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from bench.peers.comparison import verdicts
from bench.peers.goals import HIGHER_IS_BETTER
from bench.record import read_best, widest_instructions

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


NAMES = {
    "openvino": "OpenVINO GenAI",
    "vllm": "vLLM",
    "llama-cpp": "llama.cpp",
    "transformers": "transformers",
}


def _best_peer(
    workload: str, figure: str, ours: str, decimals: int
) -> Callable[[Record], tuple[str, str, str]]:
    """Compares with the best of the engines that ran beside `ours`, with weights of as many bits or
    more.
    """

    def show(figures: Record) -> tuple[str, str, str]:
        [verdict] = (
            found
            for found in verdicts(figures)
            if (found.workload, found.figure, found.ours) == (workload, figure, ours)
        )
        assert verdict.theirs is not None, (workload, ours)
        assert verdict.interval is not None, (workload, ours)
        family = verdict.theirs.removesuffix("-int8")
        name = NAMES.get(family, family) + (" int8" if family != verdict.theirs else "")
        if len(verdict.candidates) > 1:
            name += f", best of {len(verdict.candidates)}"
        is_slower = (
            verdict.interval.high < 1 if figure in HIGHER_IS_BETTER else verdict.interval.low > 1
        )
        return (
            f"{verdict.our_median:.{decimals}f}",
            f"{verdict.their_median:.{decimals}f} ({name})",
            _interval(astuple(verdict.interval)) + (", **slower**" if is_slower else ""),
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
        "peers_latency",
        _best_peer("single", "tpot_ms", "taco", 1),
    ),
    Highlight(
        "1 stream, int8, 1,024 tokens in: ms to the first token",
        "peers_latency",
        _best_peer("long", "ttft_ms", "taco-int8", 0),
    ),
    Highlight(
        "32 requests at once, bf16: tokens/s",
        "peers_throughput",
        _best_peer("batch", "tokens_per_s", "taco", 0),
    ),
    Highlight(
        "32 requests at once, int8: tokens/s",
        "peers_throughput",
        _best_peer("batch", "tokens_per_s", "taco-int8", 0),
    ),
    Highlight(
        "command to first token, 1 GB of weights: s",
        "peers_start",
        _best_peer("start", "seconds", "taco", 2),
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


def _interval(ratio: Sequence[float]) -> str:
    return "{:.2f} ({:.2f}–{:.2f})".format(*ratio)


def _machine(record: Record) -> str:
    """Cores and the widest instructions of the processor."""
    machine = record["machine"]
    return f"{machine['cores']} cores, {machine['cpu']}, {widest_instructions(machine)}"
