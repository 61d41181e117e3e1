"""A driver's side of the pipe: it runs what it is told on standard input.

A driver is a process of its own, in its engine's environment, so that its start is in no timing and
the engines share nothing. It imports the standard library and its engine only. One JSON object a
line goes each way: `{"requests": [[ids, number of tokens], …]}` in, a `Report` or
`{"error": text}` out. It ends as its input does.
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
    """How an engine is to run; the same for all of them.

    Attributes:
        model: directory of the checkpoint, in the engine's own format.
        kv_gib: memory of the KV cache in GiB.
        options: what only this engine knows.
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
    """One request: seconds from the workload's start, and how many tokens it got."""

    first_token: float
    last_token: float
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Report:
    """A workload that was run; `seconds` is from the first submission to the last token."""

    seconds: float
    times: list[Times]

    @classmethod
    def from_json(cls, answer: dict[str, Any]) -> "Report":
        return cls(answer["seconds"], [Times(**times) for times in answer["times"]])


class Engine(Protocol):
    """An engine that is loaded."""

    version: str

    def run(self, requests: list[Request]) -> list[Times]:
        """Sends all requests at once and waits for all."""


def main(start: Callable[[Settings], AbstractContextManager[Engine]]) -> None:
    """Starts the engine as the first argument says, then runs workloads until the input ends."""
    # Engines print to standard output what they like: it becomes standard error.
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
