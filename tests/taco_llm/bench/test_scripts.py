"""The three scripts of TACO's documents, as users run them."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import jinja2
import pytest

from support.canned_server import STREAM_HEAD, CannedServer, events, piece
from support.patience import PATIENCE_SECONDS
from support.serving import free_port

pytestmark = pytest.mark.process

SCRIPTS = Path(__file__).parents[3] / "bench" / "scripts"
GOOD = STREAM_HEAD + events(piece("a"), piece("b", "length"), "[DONE]")


def run(
    directory: Path, script: str, *argv: str, **settings: str
) -> subprocess.CompletedProcess[str]:
    environment = os.environ | settings
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    return subprocess.run(
        ["bash", str(SCRIPTS / script), *argv],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def test_server_and_client_in_one(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "taco_bench.sh",
        "taco_llm",
        port=str(free_port()),
        output_len="4",
        NUM_TGT="2",
        NUM_PROMPT_PRE_TGT="2",
        SYSTEM_PROMPT_LENGTH="20",
        max_num_seqs="4",
        tp="1",
        chat_template="./llama.jinja",
    )
    assert done.returncode == 0, done.stderr
    assert "Serving Benchmark Result" in done.stdout
    (row,) = csv.DictReader((tmp_path / "results" / "taco_llm.csv").read_text().splitlines())
    assert (row["Backend"], row["Prefix cache"], row["Lookahead"]) == ("taco_llm", "true", "false")
    assert (row["Max concurrency"], row["Successful requests"]) == ("2", "4")
    (document,) = (tmp_path / "results").glob("taco_llm_*.json")
    assert json.loads(document.read_text())["settings"]["shared_prefix_len"] == 20


def test_the_client_uses_a_downloaded_dataset(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "What is json?"}, {"from": "gpt", "value": "A format."}]
    dataset = tmp_path / "ShareGPT_V3_unfiltered_cleaned_split.json"
    dataset.write_text(json.dumps([{"conversations": turns}]))
    with CannedServer(GOOD) as server:
        port = server.url.rpartition(":")[2]
        settings = {"port": port, "tgt_max_len": "7", "MODEL_PATH": "demo"}
        done = run(tmp_path, "taco_bench_client.sh", "vllm", "--num-prompts=2", **settings)
    assert done.returncode == 0, done.stderr
    assert {body["prompt"] for body in server.requests} == {"What is json?"}
    assert {body["max_tokens"] for body in server.requests} == {7}  # the smaller of the two
    assert (tmp_path / "results" / "vllm.csv").exists()


@pytest.mark.parametrize("script", ["taco_bench.sh", "taco_bench_server.sh"])
def test_a_failed_server_start_is_reported(script: str, tmp_path: Path) -> None:
    done = run(tmp_path, script, "taco_llm", MODEL_PATH="/no/such/model")
    assert done.returncode != 0
    assert "does not exist" in done.stderr


def test_features_that_the_server_lacks_are_rejected(tmp_path: Path) -> None:
    done = run(tmp_path, "taco_bench_server.sh", "taco_llm", tp="2")
    assert done.returncode == 2
    assert "--tensor-parallel-size=2 is not available; only 1 is" in done.stderr


def test_the_chat_template_is_that_of_llama_2() -> None:
    template = jinja2.Template((SCRIPTS / "llama.jinja").read_text())
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi "},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Bye"},
    ]
    assert template.render(messages=messages, bos_token="<s>", eos_token="</s>") == (
        "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello </s><s>[INST] Bye [/INST]"
    )


def test_data_sets_are_downloaded_once(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "data").mkdir(parents=True)
    (source / "data" / "c4_sample.jsonl").write_text("{}")
    done = run(tmp_path, "download.sh", "c4_sample.jsonl", SOURCE_URL=source.as_uri())
    assert (done.returncode, done.stdout) == (0, "c4_sample.jsonl\n"), done.stderr
    assert (tmp_path / "c4_sample.jsonl").read_text() == "{}"
    done = run(tmp_path, "download.sh", "c4_sample.jsonl", SOURCE_URL="file:///nowhere")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    done = run(tmp_path, "download.sh", "github_sample.jsonl", SOURCE_URL=source.as_uri())
    assert done.returncode != 0
    assert not (tmp_path / "github_sample.jsonl").exists()
    done = run(tmp_path, "download.sh", "other.json")
    assert done.returncode == 2
    assert "there is no file other.json" in done.stderr


@pytest.mark.parametrize("script", sorted(path.name for path in SCRIPTS.glob("taco_bench*.sh")))
def test_an_engine_must_be_named(script: str, tmp_path: Path) -> None:
    done = run(tmp_path, script)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: bash ")
