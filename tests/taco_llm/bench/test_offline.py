"""`taco_llm bench throughput` and `bench latency` on a small random checkpoint."""

import json
from pathlib import Path

import pytest

from support.checkpoints import make_checkpoint
from taco_llm.cli.main import main

pytestmark = pytest.mark.kernels

ENGINE = ("--num-gpu-blocks-override", "64", "--num-threads", "1", "--max-num-seqs", "8")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_checkpoint(tmp_path_factory.mktemp("model")))


def test_throughput(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.json"
    lengths = ("--num-prompts", "6", "--random-input-len", "12", "--random-output-len", "5")
    argv = ["bench", "throughput", checkpoint, *ENGINE, *lengths, "--output-file", str(path)]
    assert main(argv) == 0
    assert "6 requests, 72 input tokens, 30 output tokens in" in capsys.readouterr().out
    document = json.loads(path.read_text())
    figures = document["figures"]
    assert (figures["total_input_tokens"], figures["total_output_tokens"]) == (72, 30)
    assert figures["tokens_per_second"] == pytest.approx(102 / figures["elapsed_time"])
    assert document["settings"]["engine"]["max_num_seqs"] == 8


def test_throughput_of_a_dataset(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = tmp_path / "d.jsonl"
    dataset.write_text('{"prompt": "Tell me a story", "output": "Once upon a time"}\n' * 4)
    argv = ["bench", "throughput", checkpoint, *ENGINE, "--num-prompts", "3"]
    assert main([*argv, "--dataset-path", str(dataset)]) == 0
    assert "3 requests" in capsys.readouterr().out


def test_latency(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.json"
    size = ("--batch-size", "3", "--input-len", "9", "--output-len", "4", "--num-iters", "3")
    vocabulary = ("--random-vocab-size", "300")
    argv = ["bench", "latency", checkpoint, *ENGINE, *size, *vocabulary]
    assert main([*argv, "--output-file", str(path)]) == 0
    assert "Mean latency (s): " in capsys.readouterr().out
    figures = json.loads(path.read_text())["figures"]
    assert len(figures["latencies"]) == 3
    assert figures["mean_latency"] == pytest.approx(sum(figures["latencies"]) / 3)
    assert figures["p10_latency"] <= figures["median_latency"] <= figures["p99_latency"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["throughput"], "MODEL is needed: taco_llm bench throughput MODEL"),
        (["latency", "/no/such/model"], "does not exist"),
        (["throughput", "MODEL", "--random-input-len", "900"], "maximum context length"),
        (["latency", "MODEL", "--input-len", "900"], "maximum context length"),
        (["latency", "MODEL", "--num-iters", "0"], "--num-iters must be at least 1"),
        (["throughput", "MODEL", "--output-file", "x.csv"], "must end in .json"),
        (["throughput", "MODEL", "--dataset-path", "/no/file"], "cannot read the dataset"),
        (["throughput", "MODEL", "--block-size", "7"], "7 is not available"),
    ],
)
def test_a_wrong_command_is_a_one_line_error(
    argv: list[str], message: str, checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [checkpoint if argument == "MODEL" else argument for argument in argv]
    try:
        code = main(["bench", *command, *(ENGINE if len(command) > 1 else ())])
    except SystemExit as error:
        code = int(error.code or 0)
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert captured.err.splitlines()[-1].startswith(f"taco_llm bench {argv[0]}: error: ")
    assert message in captured.err
