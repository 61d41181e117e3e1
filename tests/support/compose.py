"""deploy/compose/compose.yaml as plain processes on this machine, where no container engine is.

What an engine would give a service (its name, its ports, files under /run/secrets, volumes) is put
into its command line and environment instead; all else is taken as the file has it.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from support.patience import PATIENCE_SECONDS, wait_until
from support.serving import free_port

FOLDER = Path(__file__).parents[2] / "deploy" / "compose"
_VARIABLE = re.compile(r"\$(\$|\{(\w+)(?::-([^{}]*))?\})")
_CHECK_INTERVAL = 0.3
_LISTENS = re.compile(r"(?:port[= ]|0\.0\.0\.0:)([1-9]\d*)")


def read_compose(variables: Mapping[str, str], file: Path = FOLDER / "compose.yaml") -> Any:
    """The file with its variables filled in, as Compose does (`${NAME:-default}`, `$$`).

    Raises:
        KeyError: a variable has neither a value nor a default.
    """

    def value(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        name, default = match[2], match[3]
        return variables[name] if default is None else variables.get(name) or default

    def fill(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: fill(item) for key, item in node.items()}
        if isinstance(node, list):
            return [fill(item) for item in node]
        return _VARIABLE.sub(value, node) if isinstance(node, str) else node

    return fill(yaml.safe_load(file.read_text()))


def secret_files(compose: Any, service: str) -> dict[str, Path]:
    """Names under /run/secrets, and which files stand there."""
    files = {}
    for secret in compose["services"][service].get("secrets", ()):
        source = secret if isinstance(secret, str) else secret["source"]
        target = secret if isinstance(secret, str) else secret["target"]
        files[target] = FOLDER / compose["secrets"][source]["file"]
    return files


def stopping_order(compose: Any, services: Sequence[str]) -> list[str]:
    """As Compose stops them: who depends on another goes before it."""
    order: list[str] = []

    def visit(name: str) -> None:
        for other in compose["services"][name].get("depends_on", ()):
            if other in services:
                visit(other)
        if name not in order:
            order.append(name)

    for name in services:
        visit(name)
    return order[::-1]


@dataclass(frozen=True, slots=True)
class _Running:
    popen: subprocess.Popen[bytes]
    log: Path


class Topology:
    """Services of a compose file, each a process.

    Args:
        compose: as `read_compose` gives it.
        services: those that run.
        directory: for their logs and volumes.
    """

    def __init__(self, compose: Any, services: Sequence[str], directory: Path) -> None:
        self._compose = compose
        self._services = services
        self._directory = directory
        self._ports: dict[tuple[str, str], int] = {}
        self._running: dict[str, _Running] = {}

    def start(self) -> None:
        """All at once, so that each may come before what it needs."""
        for name in self._services:
            log = self._directory / f"{name}.log"
            with log.open("wb") as out:
                popen = subprocess.Popen(
                    ["setpriv", "--pdeathsig", "KILL", *self._command(name)],
                    env=self._environment(name),
                    stdout=out,
                    stderr=out,
                    cwd=self._directory,
                    start_new_session=True,
                )
            self._running[name] = _Running(popen, log)

    def until_healthy(self, name: str) -> None:
        """Until the check that the file has for it succeeds."""
        kind, *check = self._compose["services"][name]["healthcheck"]["test"]
        command = ["sh", "-c", *check] if kind == "CMD-SHELL" else check
        command = [sys.executable if word == "python" else word for word in command]
        words = [self._localize(name, word) for word in command]
        running = self._running[name]

        def is_healthy() -> bool:
            assert running.popen.poll() is None, running.log.read_text()
            if subprocess.run(words, capture_output=True, check=False).returncode == 0:
                return True
            time.sleep(_CHECK_INTERVAL)  # a check is a process, and takes time from who starts
            return False

        wait_until(is_healthy, f"a healthy {name}")

    def port(self, name: str, port: int | str) -> int:
        """Where a port of a service is on this machine."""
        return self._ports.setdefault((name, str(port)), free_port())

    def stop(self) -> dict[str, int]:
        """Exit codes after SIGTERM, in the order in which Compose stops services."""
        codes = {}
        for name in stopping_order(self._compose, self._services):
            popen = self._running[name].popen
            popen.send_signal(signal.SIGTERM)
            codes[name] = popen.wait(PATIENCE_SECONDS)
        return codes

    def kill(self) -> None:
        for running in self._running.values():
            running.popen.kill()
            running.popen.wait()

    def log(self, name: str) -> str:
        return self._running[name].log.read_text()

    def _command(self, name: str) -> list[str]:
        service = self._compose["services"][name]
        words = [self._localize(name, word) for word in service["command"]]
        if "build" not in service:
            return words  # a program of others, which is installed here
        return [sys.executable, "-m", "taco_llm.cli.main", *words]  # the images' entry point

    def _environment(self, name: str) -> dict[str, str]:
        added = self._compose["services"][name].get("environment", {})
        return os.environ | {key: self._localize(name, value) for key, value in added.items()}

    def _localize(self, name: str, text: str) -> str:
        for target, file in secret_files(self._compose, name).items():
            text = text.replace(f"/run/secrets/{target}", str(file))
        for volume in self._compose["services"][name].get("volumes", ()):
            source, target = volume.split(":")[:2]
            text = text.replace(target, str(self._directory / source))
        services = "|".join(self._compose["services"])
        text = re.sub(
            rf"\b({services}):(\d+)\b", lambda at: f"127.0.0.1:{self.port(at[1], at[2])}", text
        )
        own = "|".join(_LISTENS.findall(" ".join(self._compose["services"][name]["command"])))
        text = re.sub(rf"(?<!\.)\b({own})\b", lambda at: str(self.port(name, at[1])), text)
        return text.replace("0.0.0.0", "127.0.0.1")


@contextmanager
def running_topology(compose: Any, services: Sequence[str], directory: Path) -> Iterator[Topology]:
    topology = Topology(compose, services, directory)
    try:
        topology.start()
        yield topology
    finally:
        topology.kill()
