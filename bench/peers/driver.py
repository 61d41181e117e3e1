"""A driver's side of the pipe: runs workloads that it reads from standard input.

A driver is its own process in its engine's environment, so that no start is timed and engines
share nothing. It imports only the standard library and its engine. Each direction sends one JSON
object per line: `{"requests": [[ids, number of tokens, JSON schema, adapter], …]}` in; a `Report`
or `{"error": text}` out. It exits when its input ends.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from bench.peers.workloads import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a run, the same for all engines.

    Attributes:
        model: directory of the checkpoint, in the engine's own format.
        kv_gib: memory of the KV cache in GiB.
        options: settings that only this engine has.
    """

    model: str
    threads: int
    prefix_cache: bool
    max_model_len: int
    max_num_seqs: int
    kv_gib: int
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Times:
    """One request: seconds from the workload's start, and its number of tokens."""

    first_token: float
    last_token: float
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Report:
    """A finished workload; `seconds` is from the first submission to the last token."""

    seconds: float
    times: list[Times]

    @classmethod
    def from_json(cls, answer: dict[str, Any]) -> "Report":
        return cls(answer["seconds"], [Times(**times) for times in answer["times"]])


class Engine(Protocol):
    """A loaded engine."""

    version: str

    def run(self, requests: list[Request]) -> list[Times]:
        """Sends all requests at once and waits for all."""


def reject_adapters(requests: list[Request]) -> None:
    """For engines without adapters."""
    if any(request.adapter is not None for request in requests):
        raise ValueError("this engine has no adapters: give its -lora variant")


def reject_schemas(requests: list[Request]) -> None:
    """For engines that are compared without constraints."""
    if any(request.json_schema is not None for request in requests):
        raise ValueError("this engine has no JSON schemas here: leave it out of such a workload")


def main(start: Callable[[Settings], AbstractContextManager[Engine]]) -> None:
    """Starts the engine with the first argument's settings, then runs workloads until input
    ends.
    """
    # Engines may print to standard output: redirect that to standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=answers, flush=True)

    try:
        with start(Settings(**json.loads(sys.argv[1]))) as engine:
            answer({"version": engine.version})
            for line in sys.stdin:
                requests = [Request(*request) for request in json.loads(line)["requests"]]
                answer(asdict(_timed(engine, requests)))
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {error}"})
        raise


def _timed(engine: Engine, requests: list[Request]) -> Report:
    started = time.perf_counter()
    times = engine.run(requests)
    seconds = time.perf_counter() - started
    for request, got in zip(requests, times, strict=True):
        if got.num_tokens != request.num_output_tokens:
            raise RuntimeError(f"{got.num_tokens} tokens instead of {request.num_output_tokens}")
    return Report(seconds, times)
