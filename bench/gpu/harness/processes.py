"""The parts of a run, each in its own process with a time limit."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.gpu.harness.report import DONE, path_of, set_status

# Part of the time limit that is reserved to write the last figures and exit.
END_SECONDS = 6.0
_ERROR_CHARS = 4000
NO_DEVICE, NO_DEVICE_CODE = "no device", 3


@dataclass(frozen=True, slots=True)
class Part:
    """One module of `bench.gpu.parts`.

    Attributes:
        seconds: its share of the time, relative to the other parts' shares.
        call: the command that runs it: a borrowed machine runs commands of ten minutes at most, so
            the whole run is three of them.
    """

    name: str
    seconds: float
    about: str
    call: int = 1


PARTS = (
    Part("machine", 20, "the GPU as it is found, and its ceilings"),
    Part("correctness", 200, "the kernels' and the worker's tests, compiled"),
    Part("attention", 230, "paged attention beside other kernels"),
    Part("worker", 120, "steps of an 8B model"),
    Part("kernels", 120, "all other kernels, products of a layer", call=2),
    Part("sweep", 110, "attention by tiles and splits", call=2),
    Part("engine", 90, "taco_llm.LLM with that model", call=2),
    Part("speculation", 120, "drafts: what verifying them costs, and what they gain", call=2),
    Part("peers", 130, "the same model in transformers", call=2),
    Part("quantized", 500, "products with quantized codes, steps of an 8B model on them", call=3),
)
NUM_CALLS = max(part.call for part in PARTS)


def choose(names: Sequence[str], call: int | None = None) -> list[Part]:
    """Returns the parts of the given names in the order of a run; by default all, or all of a
    call.

    Raises:
        ValueError: there is no part of that name.
    """
    known = [part.name for part in PARTS]
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no part {', '.join(unknown)}; there are {', '.join(known)}")
    if names:
        return [part for part in PARTS if part.name in names]
    return [part for part in PARTS if call in (None, part.call)]


def limits(parts: Sequence[Part], seconds: float, elapsed: Sequence[float]) -> Iterator[float]:
    """Yields the time limit of each part; time that a part leaves goes to the parts after it.

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
    """Runs a part to its end or its time limit, and kills everything that it started.

    Returns:
        its status, which is in its record, too.
    """
    path_of(name, folder).unlink(missing_ok=True)  # of an earlier run
    with tempfile.TemporaryFile("w+", errors="replace") as stderr:
        process = subprocess.Popen(command, stderr=stderr, start_new_session=True)
        try:
            status = _status(process.wait(limit))
        except subprocess.TimeoutExpired:
            status = f"killed after {limit:.0f} s"
        finally:
            kill(process)
        if status != DONE:
            stderr.seek(0)
            error = stderr.read()[-_ERROR_CHARS:]
            set_status(name, folder, status, error)
            print(f"{name}: {status}\n{error[-1200:]}", flush=True)
    return status


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kills the leader of a session and every process in it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _status(code: int) -> str:
    if code == 0:
        return DONE
    if code == NO_DEVICE_CODE:
        return NO_DEVICE
    return f"failed: {signal.Signals(-code).name}" if code < 0 else f"failed: exit {code}"
