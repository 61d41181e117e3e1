"""The parts of a run, and the processes that they are."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpu.report import DONE, path_of, set_status

# What a part keeps of its limit to write its last figures and end in good order.
END_SECONDS = 6.0
_ERROR_CHARS = 4000
NO_DEVICE, NO_DEVICE_CODE = "no device", 3


@dataclass(frozen=True, slots=True)
class Part:
    """One module of this folder.

    Attributes:
        seconds: its share of the time, in relation to the others' shares.
    """

    name: str
    seconds: float
    about: str


PARTS = (
    Part("machine", 25, "the GPU as it is found, and its ceilings"),
    Part("correctness", 110, "the kernels' and the worker's tests, compiled"),
    Part("attention", 85, "paged attention beside other kernels"),
    Part("kernels", 90, "all other kernels, products of a layer; attention by tiles and splits"),
    Part("worker", 75, "steps of an 8B model"),
    Part("engine", 50, "taco_llm.LLM with that model"),
    Part("speculation", 90, "drafts: what verifying them costs, and what they gain"),
    Part("peers", 45, "the same model in transformers"),
)


def choose(names: Sequence[str]) -> list[Part]:
    """The parts of these names in the order of a run; all of them where there are no names.

    Raises:
        ValueError: there is no part of that name.
    """
    known = [part.name for part in PARTS]
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no part {', '.join(unknown)}; there are {', '.join(known)}")
    return [part for part in PARTS if not names or part.name in names]


def limits(parts: Sequence[Part], seconds: float, elapsed: Sequence[float]) -> Iterator[float]:
    """How long each part may take; time that a part leaves goes to those behind it.

    Args:
        seconds: for all parts.
        elapsed: seconds since the beginning; the caller appends one before each part.
    """
    scale = seconds / sum(part.seconds for part in parts)
    end = 0.0
    for part in parts:
        end += part.seconds * scale
        yield max(0.0, end - elapsed[-1])


def run(name: str, command: Sequence[str], limit: float, folder: Path) -> str:
    """Runs a part to its end or to its limit; nothing that it started outlives it.

    Returns:
        its status, which is in its record too.
    """
    path_of(name, folder).unlink(missing_ok=True)  # an earlier run's
    with tempfile.TemporaryFile("w+", errors="replace") as stderr:
        process = subprocess.Popen(command, stderr=stderr, start_new_session=True)
        try:
            status = _status(process.wait(limit))
        except subprocess.TimeoutExpired:
            status = f"killed after {limit:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if status != DONE:
            stderr.seek(0)
            error = stderr.read()[-_ERROR_CHARS:]
            set_status(name, folder, status, error)
            print(f"{name}: {status}\n{error[-1200:]}", flush=True)
    return status


def _status(code: int) -> str:
    if code == 0:
        return DONE
    if code == NO_DEVICE_CODE:
        return NO_DEVICE
    return f"failed: {signal.Signals(-code).name}" if code < 0 else f"failed: exit {code}"
