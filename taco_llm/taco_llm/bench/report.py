"""The text report: the rows of TACO's "Serving Benchmark Result" in their order and wording.

Additional rows (failed requests, total and peak throughput, goodput, more percentiles) follow the
rows that they belong to.
"""

from taco_llm.bench.metrics import Distribution, ServingMetrics

WIDTH = 50
LABEL_WIDTH = 40


def serving_report(metrics: ServingMetrics, *, backend: str, request_rate: float) -> str:
    """The whole report, one row per line."""
    retokenized = metrics.retokenized_tokens
    lines = [
        _title("Serving Benchmark Result", "="),
        _row("Backend", backend),
        _row("Traffic request rate", f"{request_rate:g}"),
        _row("Successful requests", metrics.completed),
    ]
    if metrics.failed:
        lines.append(_row("Failed requests", metrics.failed))
    lines += [
        _row("Benchmark duration (s)", metrics.duration),
        _row("Total input tokens", metrics.input_tokens),
        _row("Total generated tokens", metrics.output_tokens),
        _row("Total generated tokens (retokenized)", "n/a" if retokenized is None else retokenized),
        _row("Request throughput (req/s)", metrics.request_throughput),
    ]
    if metrics.request_goodput is not None:
        lines.append(_row("Request goodput (req/s)", metrics.request_goodput))
    lines += [
        _row("Input token throughput (tok/s)", metrics.input_throughput),
        _row("Output token throughput (tok/s)", metrics.output_throughput),
        _row("Peak output token throughput (tok/s)", metrics.peak_output_throughput),
        _row("Total token throughput (tok/s)", metrics.total_throughput),
        *_section("End-to-End Latency", "E2E Latency", metrics.e2el),
        *_section("Time to First Token", "TTFT", metrics.ttft),
        *_section("Time per Output Token (excl. 1st token)", "TPOT", metrics.tpot),
        *_section("Inter-token Latency", "ITL", metrics.itl),
        "=" * WIDTH,
    ]
    return "\n".join(lines)


def error_report(metrics: ServingMetrics) -> list[str]:
    """One line for each error, the most frequent first."""
    ranked = sorted(metrics.errors.items(), key=lambda item: -item[1])
    return [f"{count} failed: {error}" for error, count in ranked]


def percentile_name(percent: float) -> str:
    """99 as p99, 99.9 as p99.9."""
    return f"p{percent:g}"


def _section(title: str, name: str, times: Distribution | None) -> list[str]:
    if times is None:
        return [_title(title, "-"), _row(f"Mean {name} (ms)", "n/a")]
    rows = [
        (f"{percentile_name(percent).upper()} {name} (ms)", value)
        for percent, value in times.percentiles.items()
    ]
    return [
        _title(title, "-"),
        _row(f"Mean {name} (ms)", times.mean),
        _row(f"Median {name} (ms)", times.median),
        *(_row(label, value) for label, value in rows),
    ]


def _title(text: str, fill: str) -> str:
    return f"{f' {text} ' if fill == '=' else text:{fill}^{WIDTH}}"


def _row(label: str, value: str | float) -> str:
    shown = f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{label + ':':<{LABEL_WIDTH}} {shown}"
