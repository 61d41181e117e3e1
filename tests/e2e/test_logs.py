"""The log of `taco_llm serve` from start to stop."""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.checkpoints import make_checkpoint
from support.patience import PATIENCE_SECONDS, wait_until
from support.serving import Serving


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"))


def post(serving: Serving, body: dict[str, Any]) -> int:
    request = urllib.request.Request(
        f"{serving.url}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "x-request-id": "mine"},
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
            response.read()
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def entries(serving: Serving) -> Iterator[dict[str, Any]]:
    for line in serving.stderr.splitlines():
        entry = json.loads(line)
        assert {"time", "level", "service", "logger", "message"} <= set(entry), line
        assert set(entry) <= {
            *("time", "level", "service", "logger", "message", "event", "data", "exception")
        }, line
        yield entry


@pytest.mark.parametrize("level", ["info", "debug"])
def test_every_line_of_a_run_is_json(tmp_path: Path, checkpoint: Path, level: str) -> None:
    """The start, a request, an error, a child that dies, and the end."""
    flags = ["--num-gpu-blocks-override", "64", "--log-format", "json", "--log-level", level]
    with Serving(tmp_path, checkpoint, *flags, "--uvicorn-log-level", "info") as serving:
        serving.wait_ready()
        assert post(serving, {"prompt": "Hello", "max_tokens": 3, "ignore_eos": True}) == 200
        assert post(serving, {"prompt": "Hello", "model": "other"}) == 404
        serving.children()["worker"].kill()
        wait_until(lambda: "starting it again" in serving.stderr, "the supervisor's line")
        assert serving.stop() == 0
        said = list(entries(serving))
        assert serving.stdout == ""
    (ready,) = [entry["data"] for entry in said if entry.get("event") == "ready"]
    assert ready["kv_tokens"] == 64 * 16
    requests = [entry["data"] for entry in said if entry.get("event") == "request"]
    done, refused = [data for data in requests if data["route"] == "/v1/completions"]
    assert (done["id"], done["status"], done["completion_tokens"]) == ("mine", 200, 3)
    assert 0 <= done["queue_seconds"] <= done["ttft_seconds"] <= done["total_seconds"]
    assert (refused["status"], refused["queue_seconds"]) == (404, None)


def test_start_and_stop_log_two_lines(tmp_path: Path, checkpoint: Path) -> None:
    with Serving(tmp_path, checkpoint, "--num-gpu-blocks-override", "64") as serving:
        serving.wait_ready()
        assert serving.stop() == 0
        (line,) = serving.stdout.splitlines()
        (stopping,) = serving.stderr.splitlines()
    assert re.fullmatch(
        r"TACO \S+ · Llama \d+k · fp32 on .+ × 1 · KV 1k tokens · "
        rf"{re.escape(serving.url)}/v1 · ready in \d+\.\d s",
        line,
    )
    assert stopping.endswith(" INFO [taco.supervisor] stopping: running requests have 30 s")


@pytest.mark.parametrize(
    ("flags", "warns"),
    [
        (["--host", "0.0.0.0"], True),
        (["--host", "0.0.0.0", "--api-key", "k"], False),
    ],
)
def test_a_public_server_without_keys_is_warned_about(
    tmp_path: Path, checkpoint: Path, flags: list[str], warns: bool
) -> None:
    common = ["--num-gpu-blocks-override", "64"]
    with Serving(tmp_path, checkpoint, *common, *flags) as serving:
        serving.wait_ready()
        assert ("without an API key" in serving.stderr) == warns
