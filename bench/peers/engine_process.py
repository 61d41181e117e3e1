"""Runs one engine in its own process, controlled over a pipe."""

import json
import os
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from bench.peers.driver import Report, Settings
from bench.peers.process_tree import ProcessTree
from bench.peers.workloads import Request

ROOT = Path(__file__).parents[2]
STOP_SECONDS = 60.0
# An engine that uses more of a core than this when idle is suspended between its turns. A spinning
# engine uses a whole core. A server's heartbeats and statistics stay below it, so that its
# connections are not broken.
IDLE_CPU_SHARE = 0.1
IDLE_SECONDS = 1.0


class EngineError(RuntimeError):
    """An engine failed to start, failed or died; the message ends with its last log lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """How to start one engine.

    Attributes:
        python: the interpreter of its environment.
        driver: a module of this package.
        weight_bits: bits per weight that it computes with.
    """

    name: str
    python: Path
    driver: str
    settings: Settings
    environment: dict[str, str]
    weight_bits: int


class EngineProcess:
    """A running engine; the constructor waits until it is ready.

    Attributes:
        version: the engine's own name and version.
        idle_cpu_share: share of one core that it uses when idle.
    """

    def __init__(self, spec: EngineSpec) -> None:
        if not spec.python.exists():
            raise EngineError(
                f"{spec.name}: no such interpreter: {spec.python}; bench/peers/install.sh makes it"
            )
        self.spec = spec
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [
                str(spec.python),
                "-m",
                f"bench.peers.{spec.driver}",
                json.dumps(asdict(spec.settings)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
            env=_environment(spec),
        )
        self.tree = ProcessTree(self._process.pid)
        self.idle_cpu_share = 0.0
        try:
            self.version: str = self._answer()["version"]
        except BaseException:
            self.kill()
            raise

    def run(self, requests: list[Request]) -> Report:
        """Runs a workload. Raises `EngineError`."""
        assert self._process.stdin is not None
        message = [
            [request.prompt, request.num_output_tokens, request.json_schema, request.adapter]
            for request in requests
        ]
        try:
            print(json.dumps({"requests": message}), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise self._error("died") from None
        return Report.from_json(self._answer())

    def measure_idle(self) -> None:
        self.idle_cpu_share = self.tree.idle_cpu_share(IDLE_SECONDS)

    @property
    def spins(self) -> bool:
        return self.idle_cpu_share > IDLE_CPU_SHARE

    def pause(self) -> None:
        """Frees the cores for other engines; an engine that sleeps by itself is left alone."""
        if self.spins:
            self.tree.suspend()

    def resume(self) -> None:
        if self.spins:
            self.tree.resume()

    def close(self) -> None:
        """Ends the engine in order. Idempotent."""
        if self._process.poll() is None:
            self.resume()
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
        self._log.close()

    def kill(self) -> None:
        """Kills the engine and its child processes at once, also in the middle of a workload."""
        if self._process.poll() is None:
            self.tree.kill()
            self._process.wait()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.kill()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._error(f"ended with code {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise self._error(answer["error"])
        return answer

    def _error(self, text: str) -> EngineError:
        self._log.seek(0)
        last_lines = self._log.read().decode(errors="replace").splitlines()[-15:]
        return EngineError("\n".join([f"{self.spec.name}: {text}", *last_lines]))


def _environment(spec: EngineSpec) -> dict[str, str]:
    """Python may keep compiled modules: pip has compiled those of peers, but not a checkout's."""
    found = os.environ | {"PYTHONPATH": str(ROOT)} | spec.environment
    found.pop("PYTHONDONTWRITEBYTECODE", None)
    return found
