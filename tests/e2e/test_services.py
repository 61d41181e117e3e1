"""Gateway, scheduler and worker as separate commands over TCP, as containers run them."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest

from support.checkpoints import make_checkpoint
from support.patience import PATIENCE_SECONDS, wait_until
from support.serving import free_port

# What each of them alone shows, and counts as it answers.
OWN_METRICS = {
    "gateway": "vllm:time_to_first_token_seconds_count",
    "scheduler": "taco:steps_total",
    "worker": "taco:worker_step_seconds_count",
}


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
    admin = {name: free_port() for name in ("gateway", "scheduler", "worker")}

    def admin_of(name: str) -> list[str]:
        return ["--admin-port", str(admin[name])]

    with (
        service(
            tmp_path, "gateway", checkpoint, "--scheduler", address, *listen, *admin_of("gateway")
        ),
        service(
            tmp_path, "worker", checkpoint, "--scheduler", address, *blocks, *admin_of("worker")
        ),
        service(tmp_path, "scheduler", "--listen", address, *admin_of("scheduler")),
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
        with httpx.Client(timeout=PATIENCE_SECONDS) as http:
            for name, metric in OWN_METRICS.items():
                at = f"http://127.0.0.1:{admin[name]}"
                assert http.get(f"{at}/livez").status_code == 200
                assert http.get(f"{at}/readyz").json() == {"ready": True}
                page = http.get(f"{at}/metrics").text
                assert f'taco:build_info{{service="{name}"' in page
                assert re.search(rf"^{metric}{{.*}} [1-9]", page, re.MULTILINE)
