"""`taco_llm bench serve` against a real service, and its error messages."""

import csv
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.canned_server import STREAM_HEAD, CannedServer, events, piece, refusal
from support.patience import PATIENCE_SECONDS, wait_until
from support.serving import Serving, free_port
from taco_llm.cli.main import main

pytestmark = pytest.mark.process

GOOD = STREAM_HEAD + events(piece("a"), piece("b", "length"), "[DONE]")


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    flags = ["--num-gpu-blocks-override", "256", "--max-num-seqs", "8"]
    with Serving(tmp_path_factory.mktemp("serving"), "demo", *flags) as running:
        yield running.wait_ready()


def bench(*argv: str) -> int:
    """The exit code; argparse's own exits count as one."""
    try:
        return main(["bench", "serve", *argv])
    except SystemExit as error:
        return int(error.code or 0)


def rows_of(report: str) -> dict[str, str]:
    pairs = (line.split(":", 1) for line in report.splitlines() if ":" in line)
    return {label: value.strip() for label, value in pairs}


def test_completions_of_the_real_service(
    serving: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, document, picture = (tmp_path / "new" / f"run.{s}" for s in ("csv", "json", "png"))
    lengths = ["--random-input-len", "20", "--random-output-len", "6", "--shared-prefix-len", "40"]
    files = [f"--output-file={path}" for path in (table, document, picture)]
    code = bench(
        *("--port", str(serving.port), "--num-prompts", "5", "--ignore-eos", *lengths, *files),
        *("--request-rate", "50", "inf", "--tokenizer", "demo", "--backend", "taco_llm"),
        *("--metadata", "prefix_cache=true", "--metric-percentiles", "50", "99"),
    )
    assert code == 0
    report = rows_of(capsys.readouterr().out)
    assert report["Backend"] == "taco_llm"
    assert report["Successful requests"] == "5"
    assert report["Total input tokens"] == "300"
    assert report["Total generated tokens"] == "30"
    assert report["P50 TTFT (ms)"] == report["Median TTFT (ms)"]
    rows = list(csv.DictReader(table.open(newline="")))
    assert [row["Request rate (req/s)"] for row in rows] == ["50", "inf"]
    assert {row["Prefix cache"] for row in rows} == {"true"}
    results = json.loads(document.read_text())
    assert results["settings"]["model"] == "demo"
    assert [run["total_output_tokens"] for run in results["runs"]] == [30, 30]
    # Equal where a busy machine hands the client a whole answer in one read.
    assert all(0 < run["median_ttft_ms"] <= run["median_e2el_ms"] for run in results["runs"])
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_chats_of_the_real_service_one_at_a_time(
    serving: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = [
        {"from": "human", "value": "What does os.path.join do?"},
        {"from": "gpt", "value": "It joins the parts of a path with the separator."},
    ]
    dataset = tmp_path / "sharegpt.json"
    dataset.write_text(json.dumps([{"conversations": turns}] * 3))
    details = tmp_path / "run.json"
    code = bench(
        *("--base-url", f"{serving.url}/v1", "--endpoint", "/v1/chat/completions"),
        *("--dataset-path", str(dataset), "--tokenizer", "demo", "--num-prompts", "3"),
        *("--max-concurrency", "1", "--save-detailed", "--output-file", str(details)),
    )
    assert code == 0
    report = rows_of(capsys.readouterr().out)
    assert report["Successful requests"] == "3"
    assert report["Total generated tokens (retokenized)"] != "n/a"
    requests = json.loads(details.read_text())["runs"][0]["requests"]
    ends = [request["start"] + request["latency"] for request in requests]
    assert all(r["start"] >= end for r, end in zip(requests[1:], ends, strict=False))
    assert all(0 < request["ttft"] <= request["latency"] for request in requests)


def test_an_unknown_model_is_a_one_line_error(
    serving: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("--port", str(serving.port), "--model", "unknown") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "HTTP 404: The model 'unknown' does not exist" in captured.err


def test_failed_requests_are_listed(
    serving: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = ["--random-input-len", "2000", "--num-warmups", "0", "--num-prompts", "3"]
    document = tmp_path / "run.json"
    assert bench("--port", str(serving.port), *long, "--output-file", str(document)) == 1
    captured = capsys.readouterr()
    report = rows_of(captured.out)
    assert (report["Successful requests"], report["Failed requests"]) == ("0", "3")
    assert captured.err.startswith("3 failed: HTTP 400: This model's maximum context length")
    run = json.loads(document.read_text())["runs"][0]
    assert list(run["errors"].values()) == [3]
    assert run["mean_ttft_ms"] is None


def test_an_unreachable_server_is_a_one_line_error(capsys: pytest.CaptureFixture[str]) -> None:
    port = str(free_port())
    assert bench("--port", port) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        f"taco_llm bench serve: error: cannot connect to http://127.0.0.1:{port}: "
        "Connection refused\n"
    )


def test_a_failing_server_is_a_one_line_error(capsys: pytest.CaptureFixture[str]) -> None:
    with CannedServer(refusal(503, b'{"error": {"message": "no engine"}}')) as server:
        assert bench("--base-url", server.url) == 2
    assert capsys.readouterr().err == (
        "taco_llm bench serve: error: the warm-up request failed: HTTP 503: no engine\n"
    )


def test_every_rate_has_new_prompts_and_no_warm_up_between() -> None:
    with CannedServer(GOOD) as server:
        code = bench(
            *("--base-url", server.url, "--num-prompts", "2", "--request-rate", "1000", "inf")
        )
        prompts = [tuple(body["prompt"]) for body in server.requests]
    assert code == 0
    assert len(prompts) == len(set(prompts)) == 5


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--dataset-path", "/no/such/file"], "cannot read the dataset"),
        (["--endpoint", "/v1/chat/completions"], "random prompts need --tokenizer"),
        (["--tokenizer", "/no/such/tokenizer"], "does not exist"),
        (["--base-url", "localhost:8000"], "is not an http or https URL"),
        (["--output-file", "x.txt"], "must end in .csv or .json or .png"),
        (["--output-file", "/proc/no/x.csv"], "cannot write /proc/no/x.csv"),
        (["--request-rate", "0"], "--request-rate must be positive"),
        (["--request-rate", "fast"], "invalid float value"),
        (["--goodput", "itl:5"], "is not METRIC:MILLISECONDS"),
        (["--metadata", "x"], "is not KEY=VALUE"),
        (["--random-range-ratio", "1"], "--random-range-ratio must be"),
        (["--num-prompts", "0"], "--num-prompts must be at least 1"),
        (["--metric-percentiles", "100"], "must lie between 0 and 100"),
        (["--burstiness", "0"], "burstiness must be positive"),
        (["--endpoint", "v1/completions"], "endpoint must begin with /"),
        (["--extra-body", "[]"], "must be a JSON object"),
    ],
)
def test_a_wrong_command_is_one_line(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(*argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err


def test_a_table_with_other_columns_is_rejected_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a,b\n1,2\n")
    with CannedServer(GOOD) as server:
        assert bench("--base-url", server.url, "--output-file", str(path)) == 2
    assert server.requests == []
    assert "other columns" in capsys.readouterr().err
    assert path.read_text() == "a,b\n1,2\n"


def test_nothing_but_the_report_goes_to_standard_output() -> None:
    with CannedServer(GOOD) as server:
        command = [sys.executable, "-m", "taco_llm.cli.main", "bench", "serve"]
        done = subprocess.run(
            [*command, "--base-url", server.url, "--num-prompts", "2"],
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=True,
        )
    assert done.stderr == ""  # without a terminal there is no progress bar
    assert done.stdout.splitlines()[0].strip("=") == " Serving Benchmark Result "


def test_an_interrupt_prints_one_line() -> None:
    with CannedServer(None) as server:
        command = [sys.executable, "-m", "taco_llm.cli.main", "bench", "serve"]
        process = subprocess.Popen(
            [*command, "--base-url", server.url], stderr=subprocess.PIPE, text=True
        )
        wait_until(lambda: bool(server.requests) or process.poll() is not None, "a request")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130
    assert errors == "Interrupted: the run that was under way is not reported.\n"
