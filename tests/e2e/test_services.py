"""Gateway, scheduler and worker as commands of their own, over TCP, as containers run them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest

from support.checkpoints import make_checkpoint
from support.patience import PATIENCE_SECONDS, wait_until
from support.serving import free_port


@contextmanager
def service(directory: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """`taco_llm ARGUMENTS`, which must end with 0 when it is asked to."""
    log = directory / f"{arguments[0]}.err"
    with log.open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "taco_llm.cli.main", *arguments],
            stderr=err,
            env={**os.environ, "TACO_API_KEY": "one,two"},
        )
    try:
        yield process
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def test_the_services_find_each_other_in_any_order(tmp_path: Path) -> None:
    checkpoint = str(make_checkpoint(tmp_path / "model"))
    address, port = f"127.0.0.1:{free_port()}", free_port()
    url = f"http://127.0.0.1:{port}/v1"
    listen = ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "tiny"]
    blocks = ["--num-gpu-blocks-override", "64", "--num-threads", "1"]
    with (
        service(tmp_path, "gateway", checkpoint, "--scheduler", address, *listen),
        service(tmp_path, "worker", checkpoint, "--scheduler", address, *blocks),
        service(tmp_path, "scheduler", "--listen", address),
        openai.OpenAI(base_url=url, api_key="two", max_retries=0) as client,
    ):

        def answers() -> bool:
            try:
                completion = client.completions.create(model="tiny", prompt="x", max_tokens=3)
            except (openai.APIConnectionError, openai.InternalServerError):
                return False
            return completion.usage is not None and completion.usage.completion_tokens > 0

        wait_until(answers, "the first answer")
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="three").completions.create(model="tiny", prompt="x")
