"""Seconds from `taco_llm serve` to its first answer, and import time of the gateway.

python -m bench.services.startup [--runs 5] [--model demo] [--save]
"""

import argparse
import json
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

from bench import record

START_TIMEOUT = 120.0
POLL_SECONDS = 0.02
IMPORT_GATEWAY = "import taco_gateway.app, taco_gateway.server"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args()

    first_answers = [seconds_to_first_answer(args.model) for _ in range(args.runs)]
    imports = [seconds_to_import() for _ in range(args.runs)]
    figures = {
        "first_answer_seconds": summary(first_answers),
        "gateway_import_seconds": summary(imports),
    }
    print(json.dumps(figures, indent=2))
    if args.save:
        record.save("startup", figures)


def seconds_to_first_answer(model: str) -> float:
    """Starts the server, sends requests until one is answered, and stops the server."""
    port = free_port()
    command = [sys.executable, "-m", "taco_llm.cli.main", "serve", model]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not answers(port):
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with code {process.returncode}")
            if time.perf_counter() - started > START_TIMEOUT:
                raise RuntimeError(f"no answer within {START_TIMEOUT:g} s")
            time.sleep(POLL_SECONDS)
        return time.perf_counter() - started
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def answers(port: int) -> bool:
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request) as response:
            return bool(json.load(response)["choices"])
    except (urllib.error.URLError, ConnectionError):
        return False


def seconds_to_import() -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", IMPORT_GATEWAY], check=True)
    return time.perf_counter() - started


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def summary(values: list[float]) -> dict[str, Any]:
    return {
        "runs": len(values),
        "min": round(min(values), 2),
        "median": round(statistics.median(values), 2),
        "max": round(max(values), 2),
    }


if __name__ == "__main__":
    main()
