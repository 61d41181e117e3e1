"""The text report, the CSV table and the JSON: names and numbers of TACO's documents."""

import csv
import json
from pathlib import Path

import pytest

from taco_llm.bench.metrics import Distribution, ServingMetrics, measure
from taco_llm.bench.plot import write_plot
from taco_llm.bench.report import error_report, serving_report
from taco_llm.bench.results import Run, append_csv, check_csv, csv_columns, csv_row, write_document
from taco_llm.bench.serve_args import BenchServeArgs
from taco_llm.bench.timeline import Timeline
from taco_proto.errors import ConfigurationError

INF = float("inf")

# The example of TACO's documents.
EXAMPLE = ServingMetrics(
    completed=4,
    failed=0,
    duration=9.576429,
    input_tokens=1980,
    output_tokens=1600,
    retokenized_tokens=1602,
    peak_output_throughput=200.0,
    request_goodput=None,
    tokens_per_chunk=2.9,
    e2el=Distribution(2390.311, 2069.776, 1.0, {99.0: 2500.0}),
    ttft=Distribution(656.3841, 41.38155, 1.0, {99.0: 2427.637}),
    tpot=Distribution(4.345681, 4.508368, 1.0, {99.0: 5.503256}),
    itl=Distribution(12.4275, 12.37992, 1.0, {99.0: 13.26822}),
    errors={},
)
EXAMPLE_REPORT = """\
Backend: taco_llm
Traffic request rate: inf
Successful requests: 4
Benchmark duration (s): 9.58
Total input tokens: 1980
Total generated tokens: 1600
Total generated tokens (retokenized): 1602
Request throughput (req/s): 0.42
Input token throughput (tok/s): 206.76
Output token throughput (tok/s): 167.08
End-to-End Latency
Mean E2E Latency (ms): 2390.31
Median E2E Latency (ms): 2069.78
Time to First Token
Mean TTFT (ms): 656.38
Median TTFT (ms): 41.38
P99 TTFT (ms): 2427.64
Time per Output Token (excl. 1st token)
Mean TPOT (ms): 4.35
Median TPOT (ms): 4.51
P99 TPOT (ms): 5.50
Inter-token Latency
Mean ITL (ms): 12.43
Median ITL (ms): 12.38
P99 ITL (ms): 13.27
"""
EXAMPLE_ROW = (
    "20241220 taco_llm false false false true 9.576429 1980 1600 206.7577 167.0769 2390.311 "
    "2069.776 656.3841 41.38155 2427.637 4.345681 4.508368 5.503256 12.4275 12.37992 13.26822"
)
EXAMPLE_ARGS = BenchServeArgs(
    name="20241220",
    backend="taco_llm",
    metadata=(
        ("prefix_cache", "false"),
        ("offload", "false"),
        ("hit", "false"),
        ("lookahead", "true"),
    ),
)


def rows_of(report: str) -> list[str]:
    return [" ".join(line.strip("-= ").split()) for line in report.splitlines()]


def test_the_report_has_every_row_of_the_example_in_its_order() -> None:
    report = rows_of(serving_report(EXAMPLE, backend="taco_llm", request_rate=INF))
    assert report[0] == "Serving Benchmark Result"
    expected = EXAMPLE_REPORT.splitlines()
    assert [row for row in report if row in expected] == expected


def test_additional_rows() -> None:
    run = measure(
        [Timeline(end=2.0, output_tokens=1), Timeline(error="x")], 2.0, goals=[("ttft", 1)]
    )
    report = rows_of(serving_report(run, backend="b", request_rate=2.5))
    assert "Traffic request rate: 2.5" in report
    assert "Failed requests: 1" in report
    assert "Request goodput (req/s): 0.00" in report
    assert "Total generated tokens (retokenized): n/a" in report
    assert "Mean ITL (ms): n/a" in report
    percentiles = measure([Timeline(end=2.0)], 2.0, percentiles=(50.0, 99.9))
    report = rows_of(serving_report(percentiles, backend="b", request_rate=1))
    assert "P99.9 TTFT (ms): 2000.00" in report


def test_errors_are_listed_by_frequency() -> None:
    run = measure([Timeline(error=text) for text in ("a", "b", "b")], 1.0)
    assert error_report(run) == ["2 failed: b", "1 failed: a"]


def test_a_csv_row_matches_the_example(tmp_path: Path) -> None:
    path = str(tmp_path / "table.csv")
    for _ in range(2):
        append_csv(path, csv_row(EXAMPLE_ARGS, Run(INF, EXAMPLE, ())))
    with Path(path).open(newline="") as file:
        header, first, second = csv.reader(file)
    assert header == csv_columns(EXAMPLE_ARGS)
    assert first == second
    expected = EXAMPLE_ROW.split()
    assert first[: len(expected)] == expected
    assert header[:6] == ["Name", "Backend", "Prefix cache", "Offload", "Hit", "Lookahead"]
    assert dict(zip(header, first, strict=True))["Retokenized tokens"] == "1602"
    check_csv(path, header)
    with pytest.raises(ConfigurationError, match="other columns"):
        check_csv(path, [*header, "More"])


def test_a_run_without_success_has_empty_cells() -> None:
    row = csv_row(EXAMPLE_ARGS, Run(1.0, measure([Timeline(error="x")], 1.0), ()))
    assert row["Mean ITL (ms)"] == row["P99 TTFT (ms)"] == ""
    assert row["Failed requests"] == 1


def test_the_document_contains_no_secrets(tmp_path: Path) -> None:
    path = str(tmp_path / "run.json")
    args = BenchServeArgs(
        api_key="sekret", header=(("X-Key", "sekret"),), request_rate=(2.0, INF), save_detailed=True
    )
    timeline = Timeline(chunks=[1.0, 1.5], end=1.5, prompt_tokens=3, output_tokens=2)
    runs = [Run(rate, measure([timeline], 2.0), [timeline]) for rate in args.request_rate]
    command = ["taco_llm", "bench", "--api_key", "sekret", "--api-key=sekret", "--seed", "1"]
    write_document(path, args, "m", runs, command)
    text = Path(path).read_text()
    assert "sekret" not in text
    document = json.loads(text)
    assert document["command"] == "taco_llm bench --api_key '***' '--api-key=***' --seed 1"
    assert {"date", "machine", "versions", "settings"} <= set(document)
    assert document["settings"]["model"] == "m"
    assert [run["request_rate"] for run in document["runs"]] == [2.0, "inf"]
    run = document["runs"][0]
    assert run["mean_ttft_ms"] == run["p99_ttft_ms"] == 1000
    assert run["output_throughput"] == 1
    assert run["requests"][0]["itls"] == [0.5]


@pytest.mark.slow
def test_the_picture_is_drawn_with_and_without_values(tmp_path: Path) -> None:
    path = tmp_path / "latency.png"
    timeline = Timeline(chunks=[1.0], end=1.5, output_tokens=1)
    runs = [Run(rate, measure([timeline], 2.0), ()) for rate in (1.0, INF)]
    write_plot(str(path), [*runs, Run(2.0, measure([], 0.0), ())], "title")
    assert path.read_bytes().startswith(b"\x89PNG")
