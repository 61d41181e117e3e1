"""The record of one part of a run: a file that is complete after every figure.

Fields: `part`, `status`, `seconds`, `gpu`, the fields of `record.describe`, `figures` by name,
and `left_out`: reasons by name. `status` is `running` until the part sets another. If a part was
killed or crashed, its parent process sets it.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import record

RUNNING, DONE = "running", "done"


class Report:
    """Collects a part's figures and tracks its remaining time."""

    def __init__(self, part: str, folder: Path, seconds: float, gpu: str) -> None:
        """`seconds`: what the part may take, from now on."""
        self._begun = time.monotonic()
        self._seconds = seconds
        self._part = part
        self.folder = folder
        self.gpu = gpu
        self.figures: dict[str, Any] = {}
        self._left_out: dict[str, str] = {}
        self._header = record.describe() | {"command": f"bench/gpu/run.sh --only {part}"}
        self._write(RUNNING)

    @property
    def seconds_left(self) -> float:
        return self._seconds - (time.monotonic() - self._begun)

    def add(self, name: str, figures: Any, line: str = "") -> None:
        """Stores `figures` under `name`, and prints `line` after it."""
        self.figures[name] = figures
        self._write(RUNNING)
        print(f"{self._part:12} {name:34} {line}".rstrip(), flush=True)

    def leave_out(self, name: str, reason: object) -> None:
        """Records why `name` has no figures."""
        first_line = (str(reason) or type(reason).__name__).splitlines()[0][:300]
        self._left_out[name] = first_line
        self._write(RUNNING)
        print(f"{self._part:12} {name:34} left out: {first_line[:100]}", flush=True)

    def has_time(self, name: str, seconds: float) -> bool:
        """Whether `seconds` are left; otherwise records `name` as left out."""
        if self.seconds_left >= seconds:
            return True
        self.leave_out(name, f"no time: {self.seconds_left:.0f} s left, it takes about {seconds:g}")
        return False

    def close(self) -> None:
        self._write(DONE)

    def _write(self, status: str) -> None:
        content: dict[str, Any] = {
            "part": self._part,
            "status": status,
            "seconds": round(time.monotonic() - self._begun, 1),
            "gpu": self.gpu,
            **self._header,
            "figures": self.figures,
        }
        if self._left_out:
            content["left_out"] = self._left_out
        record.write(path_of(self._part, self.folder), content)


def path_of(part: str, folder: Path) -> Path:
    return folder / f"{part}.json"


def read(part: str, folder: Path) -> dict[str, Any]:
    """Returns a part's record; empty if it does not exist."""
    path = path_of(part, folder)
    if not path.exists():
        return {}
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def set_status(part: str, folder: Path, status: str, error: str = "") -> None:
    """Completes the record of a part that was killed or crashed."""
    content: Mapping[str, Any] = {"part": part, "figures": {}} | read(part, folder)
    content = {**content, "status": status}
    if error:
        content["error"] = error
    record.write(path_of(part, folder), content)
