"""An engine as users run it: `taco_llm serve` in its own processes, used over HTTP."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

START_SECONDS = 120.0


@dataclass(frozen=True)
class Answer:
    """Attributes:
    decode_seconds: from the first token to the last.
    """

    text: str
    num_tokens: int
    decode_seconds: float


class ServedEngine:
    """Starts the server and waits until it is ready. Close it after use."""

    def __init__(self, model: str, arguments: Mapping[str, Any]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = port = probe.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process
        command = [sys.executable, "-m", "taco_llm.cli.main", "serve", model]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        self._process = subprocess.Popen(
            command + _flags(arguments), stdout=subprocess.DEVNULL, stderr=self._errors
        )
        self._wait_ready()

    def answer(self, requests: list[dict[str, Any]]) -> list[Answer]:
        """Sends all requests at once; bodies of chat or completion requests."""
        return asyncio.run(self._answer(requests))

    def drafts(self) -> tuple[int, int, int]:
        """Returns decode steps of sequences, verified and accepted drafts since the start."""
        text = httpx.get(f"{self._url}/metrics").text
        names = ("spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens")
        verified, accepted = (_total(text, f"vllm:{name}_total") for name in names)
        return _total(text, "vllm:generation_tokens_total") - accepted, verified, accepted

    def child_pid(self, service: str) -> int:
        """The process of a service, such as "gateway"."""
        parent = self._process.pid
        for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[-2] == service.encode():
                return int(pid)
        raise LookupError(f"the server has no process {service!r}")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._errors.close()

    async def _answer(self, requests: list[dict[str, Any]]) -> list[Answer]:
        async with httpx.AsyncClient(base_url=self._url, timeout=None) as client:
            return await asyncio.gather(*(_stream(client, body) for body in requests))

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                if httpx.get(f"{self._url}/health").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._errors.seek(0)
                raise RuntimeError(self._errors.read().decode()[-2000:])
            time.sleep(0.1)


async def _stream(client: httpx.AsyncClient, body: dict[str, Any]) -> Answer:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    text, times, num_tokens = "", [], 0
    async with client.stream("POST", path, json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[len("data: ") :])
            for choice in event["choices"]:
                delta = choice.get("delta", choice)
                if piece := delta.get("content") or delta.get("text") or "":
                    text += piece
                    times.append(time.perf_counter())
            if event.get("usage"):
                num_tokens = event["usage"]["completion_tokens"]
    return Answer(text, num_tokens, times[-1] - times[0] if times else 0.0)


def _flags(arguments: Mapping[str, Any]) -> list[str]:
    flags = []
    for name, value in arguments.items():
        flag = "--" + name.replace("_", "-")
        flags += [flag] if value is True else [flag, str(value)]
    return flags


def _total(text: str, name: str) -> int:
    found = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    return int(sum(map(float, found)))
