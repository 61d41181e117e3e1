"""Writes results of `taco_llm bench serve`: rows of a CSV table, and JSON documents."""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from taco_llm.bench.environment import environment
from taco_llm.bench.metrics import Distribution, ServingMetrics, measure
from taco_llm.bench.output_files import write_json
from taco_llm.bench.report import percentile_name
from taco_llm.bench.serve_args import BenchServeArgs
from taco_llm.bench.timeline import Timeline
from taco_proto.errors import ConfigurationError

# Arguments that contain secrets. Results leave them out.
_PRIVATE = ("api_key", "header")
# Columns of TACO's table for features of the server. Their values come from --metadata.
_FEATURES = {
    "Prefix cache": "prefix_cache",
    "Offload": "offload",
    "Hit": "hit",
    "Lookahead": "lookahead",
}


@dataclass(frozen=True, slots=True)
class Run:
    """The results of one run at one request rate."""

    request_rate: float
    metrics: ServingMetrics
    timelines: Sequence[Timeline]


def csv_row(args: BenchServeArgs, run: Run) -> dict[str, Any]:
    """The columns of TACO's table in its order, followed by additional columns."""
    metrics, metadata = run.metrics, dict(args.metadata)
    row: dict[str, Any] = {"Name": args.run_name, "Backend": args.backend}
    row |= {column: metadata.get(key, "") for column, key in _FEATURES.items()}
    row |= {
        "Duration (s)": metrics.duration,
        "Input tokens": metrics.input_tokens,
        "Generated tokens": metrics.output_tokens,
        "Input throughput (tok/s)": metrics.input_throughput,
        "Output throughput (tok/s)": metrics.output_throughput,
    }
    for name, times in _latencies(metrics).items():
        row |= {
            f"Mean {name} (ms)": _of(times, "mean"),
            f"Median {name} (ms)": _of(times, "median"),
        }
        for percent in () if name == "E2E Latency" else args.metric_percentiles:
            row[f"{percentile_name(percent).upper()} {name} (ms)"] = _percentile(times, percent)
    for percent in args.metric_percentiles:
        label = f"{percentile_name(percent).upper()} E2E Latency (ms)"
        row[label] = _percentile(metrics.e2el, percent)
    return row | {
        "Request rate (req/s)": run.request_rate,
        "Max concurrency": args.max_concurrency or "",
        "Successful requests": metrics.completed,
        "Failed requests": metrics.failed,
        "Retokenized tokens": ""
        if metrics.retokenized_tokens is None
        else metrics.retokenized_tokens,
        "Request throughput (req/s)": metrics.request_throughput,
        "Total throughput (tok/s)": metrics.total_throughput,
        "Peak output throughput (tok/s)": metrics.peak_output_throughput,
    }


def csv_columns(args: BenchServeArgs) -> list[str]:
    """The names of the columns of `csv_row`."""
    return list(csv_row(args, Run(math.inf, measure([], 0.0), ())))


def check_csv(path: str, columns: Sequence[str]) -> None:
    """Raises ConfigurationError if the file contains a table with other columns."""
    if not Path(path).exists():
        return
    with Path(path).open(newline="", encoding="utf-8") as file:
        header = next(csv.reader(file), None)
    if header is not None and header != list(columns):
        raise ConfigurationError(
            f"{path} contains a table with other columns: give another --output-file"
        )


def append_csv(path: str, row: Mapping[str, Any]) -> None:
    """Appends one row. An empty file gets the header first."""
    with Path(path).open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(row))
        if file.tell() == 0:
            writer.writeheader()
        writer.writerow({name: _cell(value) for name, value in row.items()})


def write_document(
    path: str, args: BenchServeArgs, model: str, runs: Sequence[Run], argv: Sequence[str]
) -> None:
    """Writes the settings and the results of all runs as JSON."""
    settings = {name: value for name, value in asdict(args).items() if name not in _PRIVATE}
    settings |= {"model": model, "metadata": dict(args.metadata), "goodput": dict(args.goodput)}
    settings["request_rate"] = [_number(rate) for rate in args.request_rate]
    document = {
        **environment(argv),
        "settings": settings,
        "runs": [json_run(run, detailed=args.save_detailed) for run in runs],
    }
    write_json(path, document)


def json_run(run: Run, *, detailed: bool) -> dict[str, Any]:
    """One run with the field names of vLLM's benchmark. Times are in milliseconds."""
    metrics = run.metrics
    figures: dict[str, Any] = {
        "request_rate": _number(run.request_rate),
        "duration": metrics.duration,
        "completed": metrics.completed,
        "failed": metrics.failed,
        "total_input_tokens": metrics.input_tokens,
        "total_output_tokens": metrics.output_tokens,
        "total_output_tokens_retokenized": metrics.retokenized_tokens,
        "request_throughput": metrics.request_throughput,
        "request_goodput": metrics.request_goodput,
        "input_throughput": metrics.input_throughput,
        "output_throughput": metrics.output_throughput,
        "total_token_throughput": metrics.total_throughput,
        "max_output_tokens_per_s": metrics.peak_output_throughput,
        "tokens_per_chunk": metrics.tokens_per_chunk,
    }
    for name in ("e2el", "ttft", "tpot", "itl"):
        times: Distribution | None = getattr(metrics, name)
        for statistic in ("mean", "median", "std"):
            figures[f"{statistic}_{name}_ms"] = None if times is None else getattr(times, statistic)
        for percent, value in () if times is None else times.percentiles.items():
            figures[f"{percentile_name(percent)}_{name}_ms"] = value
    figures["errors"] = dict(metrics.errors)
    if detailed:
        figures["requests"] = [_json_request(timeline) for timeline in run.timelines]
    return figures


def _json_request(timeline: Timeline) -> dict[str, Any]:
    """One request. Times are in seconds of the benchmark's clock."""
    return {
        "start": timeline.start,
        "ttft": timeline.ttft,
        "latency": timeline.latency,
        "itls": timeline.itls,
        "prompt_tokens": timeline.prompt_tokens,
        "output_tokens": timeline.output_tokens,
        "error": timeline.error,
    }


def _latencies(metrics: ServingMetrics) -> dict[str, Distribution | None]:
    return {
        "E2E Latency": metrics.e2el,
        "TTFT": metrics.ttft,
        "TPOT": metrics.tpot,
        "ITL": metrics.itl,
    }


def _of(times: Distribution | None, statistic: str) -> float | str:
    return "" if times is None else float(getattr(times, statistic))


def _percentile(times: Distribution | None, percent: float) -> float | str:
    return "" if times is None else times.percentiles[percent]


def _cell(value: Any) -> Any:
    return f"{value:.7g}" if isinstance(value, float) else value


def _number(rate: float) -> float | str:
    return rate if math.isfinite(rate) else "inf"
