"""Runs every file of examples/ as examples/README.md says, with the demo model."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from support.patience import PATIENCE_SECONDS
from support.serving import Serving, free_port

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
# Programs that ask a server, and texts that they print.
CLIENTS = {
    "chat.py": ["The function os.path.join: Join two or more pathname components"],
    "stream.py": ["The function json.dumps: Serialize", "tokens in", "out"],
    "conversation.py": ["What does json.dumps do? (", " from the cache)", "import json"],
    "parallel.py": ["The function json.loads:", "8 answers in"],
    "repeatable.py": ["seed 7 again:", "\nequal\n"],
    "grpc_client.py": ["The function json.dumps: Serialize"],
}
WITHOUT_SERVER = {"offline.py", "serve.yaml", "keys.yaml", "benchmark.sh", "README.md"}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Variables that name a running server."""
    grpc_port = free_port()
    directory: Path = tmp_path_factory.mktemp("served")
    with Serving(directory, "demo", "--grpc-port", str(grpc_port)) as serving:
        serving.wait_ready()
        yield os.environ | {
            "OPENAI_BASE_URL": f"{serving.url}/v1",
            "OPENAI_API_KEY": "none",
            "GRPC_ADDRESS": f"127.0.0.1:{grpc_port}",
            "TACO_LLM": str(Path(sys.executable).parent / "taco_llm"),
        }


def run(command: list[str | Path], environment: dict[str, str], directory: Path) -> str:
    done = subprocess.run(
        command,
        env=environment,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client(name: str, environment: dict[str, str], tmp_path: Path) -> None:
    printed = run([sys.executable, EXAMPLES / name], environment, tmp_path)
    for text in CLIENTS[name]:
        assert text in printed


def test_the_second_turn_uses_the_cache(environment: dict[str, str], tmp_path: Path) -> None:
    printed = run([sys.executable, EXAMPLES / "conversation.py"], environment, tmp_path)
    cached = [int(number) for number in re.findall(r"(\d+) from the cache", printed)]
    assert cached[1] >= 16  # a block at least


def test_offline(tmp_path: Path) -> None:
    printed = run([sys.executable, EXAMPLES / "offline.py"], dict(os.environ), tmp_path)
    assert "The function os.path.join: Join two or more pathname components" in printed


def test_the_benchmark(environment: dict[str, str], tmp_path: Path) -> None:
    url = environment["OPENAI_BASE_URL"].removesuffix("/v1")
    printed = run([EXAMPLES / "benchmark.sh", url], environment, tmp_path)
    assert "TTFT" in printed or "time to first token" in printed.lower()
    assert (tmp_path / "latency.png").read_bytes().startswith(b"\x89PNG")


def test_the_configuration_files(tmp_path: Path) -> None:
    flags = ["--config", str(EXAMPLES / "serve.yaml"), "--api-key-file"]
    with Serving(tmp_path, "demo", *flags, str(EXAMPLES / "keys.yaml")) as serving:
        serving.wait_ready()
        question = [{"role": "user", "content": "What does len do?"}]
        for key, is_valid in (("sk-partner-new", True), ("sk-wrong", False)):
            with openai.OpenAI(base_url=f"{serving.url}/v1", api_key=key) as client:
                if is_valid:
                    answer = client.chat.completions.create(model="demo", messages=question)  # type: ignore[arg-type]
                    assert answer.choices[0].message.content
                else:
                    with pytest.raises(openai.AuthenticationError):
                        client.models.list()


def test_every_example_is_run_and_listed() -> None:
    files = {path.name for path in EXAMPLES.iterdir() if path.is_file()}
    assert files == CLIENTS.keys() | WITHOUT_SERVER
    listed = set(re.findall(r"^\| \[([\w.]+)\]", (EXAMPLES / "README.md").read_text(), re.M))
    assert listed == files - {"README.md"}
