"""Drives any server with OpenAI's `/v1/completions`, prompts of token ids, and `ignore_eos`.

Options: `command`, where `{port}` is replaced by the port; `model`, the name in requests;
`version`, the server's version; `schema_field`, the field of a request that has its JSON schema.
The client shares the server's cores, so it reads as little as possible: it parses only the last
chunk, which holds the number of tokens.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.peers import driver
from bench.peers.workloads import Request

HOST = "127.0.0.1"
POLL_SECONDS = 0.02
STOP_SECONDS = 30.0


class HttpEngine:
    def __init__(self, options: dict[str, Any], port: int) -> None:
        self.version: str = options["version"]
        self._model: str = options["model"]
        self._schema_field: str = options["schema_field"]
        self._port = port

    def run(self, requests: list[Request]) -> list[driver.Times]:
        driver.reject_adapters(requests)
        return asyncio.run(self._run_all(requests))

    async def _run_all(self, requests: list[Request]) -> list[driver.Times]:
        started = time.perf_counter()
        return await asyncio.gather(*(self._run_one(request, started) for request in requests))

    async def _run_one(self, request: Request, started: float) -> driver.Times:
        reader, writer = await asyncio.open_connection(HOST, self._port)
        try:
            writer.write(self._post(request))
            first = last = 0.0
            tail = b""
            async for data in _chunks(reader):
                if b"data: {" in data:
                    last = time.perf_counter() - started
                    first = first or last
                tail = (tail + data)[-4096:]
            return driver.Times(first, last, _num_tokens(tail))
        finally:
            writer.close()

    def _post(self, request: Request) -> bytes:
        fields: dict[str, Any] = {
            "model": self._model,
            "prompt": request.prompt,
            "max_tokens": request.num_output_tokens,
            "min_tokens": request.num_output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if request.json_schema is not None:
            constraint = request.json_schema
            if self._schema_field == "structured_outputs":
                constraint = {"json": constraint, "disable_any_whitespace": True}
            fields[self._schema_field] = constraint
        body = json.dumps(fields).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {HOST}:{self._port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        return head.encode() + body


async def _chunks(reader: asyncio.StreamReader) -> Any:
    """Yields the body's chunks (RFC 9112, section 7.1)."""
    head = await reader.readuntil(b"\r\n\r\n")
    status = head.split(b" ", 2)[1]
    if status != b"200":
        raise RuntimeError(f"status {status.decode()}: {(await reader.read(300)).decode()}")
    while size := int(await reader.readline(), 16):
        yield (await reader.readexactly(size + 2))[:-2]


def _num_tokens(tail: bytes) -> int:
    """Returns the number of tokens in the usage of a stream's last event."""
    events = [line[6:] for line in tail.split(b"\n") if line.startswith(b"data: {")]
    usage = json.loads(events[-1])["usage"] if events else None
    if usage is None:
        raise RuntimeError(f"the stream ended without usage: {tail[-300:].decode()}")
    return usage["completion_tokens"]


@contextmanager
def start(settings: driver.Settings) -> Iterator[HttpEngine]:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port = listener.getsockname()[1]
    command = [part.replace("{port}", str(port)) for part in settings.options["command"]]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        while not _is_ready(port):
            if server.poll() is not None:
                raise RuntimeError(f"the server ended with code {server.returncode}")
            time.sleep(POLL_SECONDS)
        yield HttpEngine(settings.options, port)
    finally:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.kill(server.pid, signal.SIGKILL)


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/health") as response:
            return response.status == 200
    except (urllib.error.URLError, ConnectionError):
        return False


if __name__ == "__main__":
    driver.main(start)
