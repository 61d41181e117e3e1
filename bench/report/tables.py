"""Writes the tables of figures in README.md and docs/ from bench/results/*.json.

    python -m bench.report.tables [--check]

A table is between `<!-- table: NAME -->` and `<!-- end of table -->`. With --check nothing is
written, and a page that differs from the results is an error.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers.comparison import Verdict, verdicts
from bench.peers.workloads import Length, parse
from bench.record import INSTRUCTION_SETS, by_isa, read_best
from bench.report.highlights import highlights_table
from bench.report.quality import formats_quality_table, int8_choices_table, perplexity_table
from bench.report.quantized_speed import quantized_speed_table
from bench.report.speculation import speculation_table
from bench.report.train import TABLES as TRAIN_TABLES
from bench.report.wrapping import wrapped

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
PAGES = {
    Path("README.md"): ("highlights",),
    Path("docs/benchmarks.md"): ("parts", "peers"),
    Path("docs/cpu.md"): ("perplexity", "int8_choices"),
    Path("docs/quantization.md"): ("quantized_speed", "formats_quality"),
    Path("docs/speculation.md"): ("speculation",),
    Path("docs/train/figures.md"): tuple(TRAIN_TABLES),
}
_TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of a part of TACO.

    Attributes:
        what: the measured quantity.
        result: name of the result file, without its ending.
        show: formats the figure from the result's figures.
    """

    what: str
    result: str
    show: Callable[[Record], str]


def _microseconds(name: str) -> Callable[[Record], str]:
    def show(figures: Record) -> str:
        total = figures[name]["total"]
        return f"{total['median_us']:.0f} µs (p99 {total['p99_us']:.0f} µs)"

    return show


def _text_cost(figures: Record) -> str:
    plain, stops, logprobs = (
        figures[f"{name}, µs per token"] for name in ("plain", "4 stop strings", "5 logprobs")
    )
    return f"{plain:.1f} µs ({stops:.1f}; {logprobs:.1f})"


def _share_of_bandwidth(figures: Record) -> str:
    step = figures["milliseconds"]["decode, 1 sequence"]["whole"]
    bound = figures["matrix_bytes"] / figures["gb_per_s"] / 1e6
    return f"{step:.0f} ms ({bound / step:.0%} of the memory bandwidth)"


def _ratio(step: str, case: str) -> Callable[[Record], str]:
    def show(figures: Record) -> str:
        found = figures["steps"][step][case]
        return f"{found['ratio']:.2f} of the time ({found['low']:.2f}–{found['high']:.2f})"

    return show


PARTS = (
    Row(
        "scheduler: host work of a decode step, 256 sequences",
        "scheduler_step",
        _microseconds("decode step, 256 sequences"),
    ),
    Row(
        "scheduler: admission of a prompt with 4,096 cached tokens",
        "scheduler_step",
        _microseconds("admission, 4096 cached tokens"),
    ),
    Row(
        "gateway, 64 streams, a step every 4 ms",
        "gateway_stream_4ms",
        lambda figures: (
            f"{figures['tokens_per_s']:,.0f} tokens/s "
            f"with {figures['gateway_cpu_share']:.0%} of the core"
        ),
    ),
    Row(
        "gateway, 64 streams, steps as fast as possible",
        "gateway_stream",
        lambda figures: (
            f"{figures['tokens_per_s']:,.0f} tokens/s in {figures['chunks_per_s']:,.0f} chunks/s"
        ),
    ),
    Row(
        "gateway: text work per token (4 stop strings; 5 logprobs)",
        "text_hot_path",
        _text_cost,
    ),
    Row(
        "prefix tree: match, allocate and release 4,096 cached tokens",
        "kv_microbench",
        lambda figures: f"{figures['full prefix hit, 4,096 tokens: allocate + release']:.0f} µs",
    ),
    Row(
        "`taco_llm serve demo` to its first chat answer",
        "startup",
        lambda figures: f"{figures['first_answer_seconds']['median']:.1f} s",
    ),
    Row(
        "CPU worker: decode step of one sequence, 2 layers of DeepSeek V3's shape",
        "cpu_step_deepseek-v3-2-layers",
        _share_of_bandwidth,
    ),
    Row(
        "CPU worker: decode step of 32 sequences that use four LoRA adapters, against none",
        "adapter_steps",
        _ratio("decode, 32 sequences", "four adapters"),
    ),
    Row(
        "CPU worker: 1,024 tokens of a prompt with a LoRA adapter, against none",
        "adapter_steps",
        _ratio("prefill, 1024 tokens", "one adapter"),
    ),
    Row(
        "import of the gateway",
        "startup",
        lambda figures: f"{figures['gateway_import_seconds']['median']:.1f} s",
    ),
)
_UNITS = {
    "ttft_ms": "TTFT, ms",
    "tpot_ms": "TPOT, ms",
    "tokens_per_s": "tokens/s",
    "seconds": "s",
    "above_mb": "MB",
}
_ALONE = {
    "start": "command to first token, weights on disk",
    "memory": "peak memory above weights and KV, 64 × 512 tokens",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    for page, text in changed_pages(RESULTS):
        if args.check:
            sys.exit(f"{page} differs from bench/results; run python -m bench.report.tables")
        (ROOT / page).write_text(text)
        print(f"written: {page}")


def changed_pages(results: Path) -> Iterator[tuple[Path, str]]:
    """Returns the pages whose tables differ from the results, with their new text."""
    for page in PAGES:
        text = (ROOT / page).read_text()
        new = with_tables(text, results)
        if new != text:
            yield page, new


def with_tables(text: str, results: Path) -> str:
    """Returns the page with current tables. Raises `KeyError` for an unknown table."""
    makers = {
        "experts": experts_table,
        "formats_quality": formats_quality_table,
        "highlights": highlights_table,
        "parts": parts_table,
        "peers": peers_table,
        "int8_choices": int8_choices_table,
        "perplexity": perplexity_table,
        "quantized_speed": quantized_speed_table,
        "roofline": roofline_table,
        "speculation": speculation_table,
        **TRAIN_TABLES,
    }
    return _TABLE.sub(
        lambda match: "\n".join((match[1], *makers[match[2]](results), "", match[3])), text
    )


def parts_table(results: Path) -> Iterator[str]:
    yield from ("| what | measured | `python -m …` |", "|---|---|---|")
    for row in PARTS:
        record = read_best(results, row.result)
        yield f"| {row.what} | {row.show(record['figures'])} | `{_command(record)}` |"


def peers_table(results: Path) -> Iterator[str]:
    """Yields a table of the runs with other engines on each instruction set: the files
    `peers*.ISA.json`.
    """
    runs = {isa: sorted(results.glob(f"peers*.{isa}.json")) for isa in INSTRUCTION_SETS}
    if not any(runs.values()):
        yield "No run has been recorded yet."
        return
    for number, (isa, paths) in enumerate((isa, paths) for isa, paths in runs.items() if paths):
        if number:
            yield ""
        yield from (f"### {INSTRUCTION_SETS[isa]}", "")
        yield from _peers_of_isa([_read(path) for path in paths])


def _peers_of_isa(records: Sequence[Record]) -> Iterator[str]:
    columns = "model", "workload", "figure", "engine", "TACO", "peer", "ratio (95% interval)"
    yield f"| {' | '.join(columns)} | goal | | run |"
    yield f"|{'---|' * 10}"
    for number, record in enumerate(records, 1):
        figures = record["figures"]
        for verdict in verdicts(figures):
            shape = figures["workloads"][verdict.workload]["shape"]
            yield _peers_row(figures["model"], verdict, shape, number)
    yield ""
    for number, record in enumerate(records, 1):
        yield from wrapped(f"{number}. ", _run_note(record))


def roofline_table(results: Path) -> Iterator[str]:
    """Yields the limits of the machine that each instruction set was measured on."""
    yield "| machine | limit | 1 thread | all threads |"
    yield "|---|---|---|---|"
    for isa, record in by_isa(results, "roofline").items():
        figures = record["figures"]
        limits = {"memory read, GB/s": figures["read_gb_per_s"]} | {
            f"{name.replace('_', ' ').upper()}, {_rate_unit(name)}": peak
            for name, peak in figures["peak_gops"].items()
        }
        name = f"{record['machine']['cpu']}, {INSTRUCTION_SETS[isa]}, {figures['threads']} threads"
        for limit, found in limits.items():
            one, every = (_number(found[key]) for key in ("one_thread", "all_threads"))
            yield f"| {name} | {limit} | {one} | {every} |"


def _rate_unit(loop: str) -> str:
    """The unit of one of the roofline's loops: integer operations are no FLOP."""
    return "GOP/s" if loop.endswith(("_int8", "_vnni")) else "GFLOP/s"


def experts_table(results: Path) -> Iterator[str]:
    """Yields the grouped product of a mixture's experts by rows, a line for each instruction set,
    shape and type.
    """
    layers = [
        {"isa": INSTRUCTION_SETS[isa], **layer}
        for isa, record in by_isa(results, "cpu_experts").items()
        for layer in record["figures"]["layers"]
    ]
    rows = sorted({layer["rows"] for layer in layers})
    yield f"| shape, weights | {' | '.join(f'{count:,}' for count in rows)} |"
    yield f"|---|{'---|' * len(rows)}"
    for key in dict.fromkeys(map(_of_experts, layers)):
        cells = {
            layer["rows"]: f"{layer['of_dense']:.2f} ({layer['share']:.2f})"
            for layer in layers
            if _of_experts(layer) == key
        }
        yield f"| {', '.join(key)} | {' | '.join(cells.get(count, '–') for count in rows)} |"


def _of_experts(layer: Record) -> tuple[str, str, str]:
    return layer["model"], layer["type"], layer["isa"]


def _peers_row(model: str, verdict: Verdict, shape: str, run: int) -> str:
    interval = verdict.interval
    peer = ratio = "–"
    if verdict.theirs is not None:
        others = f", best of {len(verdict.candidates)}" if len(verdict.candidates) > 1 else ""
        peer = f"{_number(verdict.their_median or 0.0)} ({verdict.theirs}{others})"
    if interval is not None:
        ratio = f"{interval.ratio:.2f} ({interval.low:.2f}–{interval.high:.2f})"
    cells = (
        model,
        _ALONE.get(verdict.workload) or describe(shape),
        _UNITS[verdict.figure],
        verdict.ours,
        _number(verdict.our_median),
        peer,
        ratio,
        verdict.goal,
        verdict.outcome,
        str(run),
    )
    return f"| {' | '.join(cells)} |"


def describe(shape: str) -> str:
    """Describes a workload's shape: `32x512+32/16` is 32 requests that share 512 of 544 tokens."""
    workload = parse(shape)
    prompt, output = _length(workload.prompt), f"{_length(workload.output)} out"
    if workload.json_schema is not None:
        output = f"{_length(workload.output)} of JSON out"
    if workload.has_adapters:
        output += ", of LoRA adapters"
    if workload.count == 1:
        return f"1 stream, {prompt} in / {output}"
    if not workload.num_shared:
        return f"{workload.count} requests, {prompt} in / {output}"
    longest = workload.num_shared + workload.prompt.high
    return f"{workload.count} requests, {workload.num_shared} of {longest:,} in shared / {output}"


def _length(length: Length) -> str:
    return f"{length.low:,}" if length.low == length.high else f"{length.low:,}–{length.high:,}"


def _number(value: float) -> str:
    """Formats with three digits, and all digits before the decimal point."""
    decimals = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{decimals}f}"


def _run_note(record: Record) -> str:
    figures, machine = record["figures"], record["machine"]
    peers = ", ".join(name for name in figures["engines"] if not name.startswith("taco"))
    return (
        f"{record['date']}, {machine['cpu']} with {figures['threads']} threads of "
        f"{machine['cores']} cores, {figures['model']}, {figures['pairs']} pairs; "
        f"peers: {peers or 'none'}."
    )


def _command(record: Record) -> str:
    return record["command"].removeprefix("python -m ").removesuffix(" --save")


def _read(path: Path) -> Record:
    return json.loads(path.read_text())


if __name__ == "__main__":
    main()
