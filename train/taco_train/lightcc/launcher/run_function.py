"""`horovod.run`: calls a function in ranks of this host, and returns what it returns."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from taco_train.lightcc.launcher.host_slots import HostSlots, is_local, parse_hosts
from taco_train.lightcc.launcher.options import Options
from taco_train.lightcc.launcher.static_job import run_static

_CALL, _RESULT = "call.pickle", "result.{}.pickle"
_START_SECONDS = 30.0


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int = 1,
    *,
    hosts: str | None = None,
    start_timeout: float | None = None,
    output_filename: str | None = None,
    verbose: bool = False,
    use_gloo: bool = True,
) -> list[Any]:
    """Calls `func(*args, **kwargs)` in every rank, each a process of this host.

    Functions of a script or a notebook need the package cloudpickle, which light-horovod installs;
    without it, functions must be importable.

    Args:
        np: number of ranks.
        hosts: None, or this host's name and slots; `horovodrun` serves several hosts.
        start_timeout: seconds until every rank has started (default 30).
        output_filename: folder for copies of the ranks' output.
        verbose: prints where each rank runs.
        use_gloo: Horovod takes it; has no effect.

    Returns:
        What the function returned, by rank.

    Raises:
        JobError: a rank failed; its traceback is in the output.
        ValueError: a host is another one.
    """
    available = parse_hosts(hosts) if hosts else [HostSlots("localhost", np)]
    for host in available:
        if not is_local(host.name):
            raise ValueError(f"horovod.run serves this host only, not {host.name}: use horovodrun")
    with tempfile.TemporaryDirectory(prefix="horovod-run-") as name:  # readable by this user alone
        folder = Path(name)
        call = _pickler().dumps((func, tuple(args), dict(kwargs or {})))
        (folder / _CALL).write_bytes(pickle.dumps((sys.path, call)))
        command = (sys.executable, "-m", "taco_train.lightcc.launcher.run_function", str(folder))
        run_static(
            Options(
                command=command,
                num_ranks=np,
                hosts=tuple(available),
                output_folder=Path(output_filename) if output_filename else None,
                start_timeout=start_timeout or _START_SECONDS,
                is_verbose=verbose,
            )
        )
        files = [folder / _RESULT.format(rank) for rank in range(np)]
        return [pickle.loads(file.read_bytes()) for file in files]


def _pickler() -> ModuleType:
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return pickle


def _call(folder: Path) -> None:
    """In a rank: calls the function, and leaves its value in a file."""
    path, call = pickle.loads((folder / _CALL).read_bytes())
    sys.path[:] = path
    function, args, kwargs = pickle.loads(call)
    value = _pickler().dumps(function(*args, **kwargs))
    (folder / _RESULT.format(os.environ["HOROVOD_RANK"])).write_bytes(value)


if __name__ == "__main__":
    _call(Path(sys.argv[1]))
