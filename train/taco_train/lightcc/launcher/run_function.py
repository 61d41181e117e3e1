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

from taco_train.lightcc.launcher.host_slots import HostSlots, is_local, parse_hosts, read_host_file
from taco_train.lightcc.launcher.options import Options
from taco_train.lightcc.settings import settings_from

_CALL, _RESULT = "call.pickle", "result.{}.pickle"
_START_SECONDS = 30.0


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    *,
    np: int | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    start_timeout: float | None = None,
    output_filename: str | None = None,
    verbose: bool | None = None,
    disable_cache: bool | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
) -> list[Any]:
    """Calls `func(*args, **kwargs)` in every rank, each a process of this host.

    Functions of a script or a notebook need the package cloudpickle, which light-horovod installs;
    without it, functions must be importable.

    Args:
        num_proc: number of ranks.
        np: an old name of `num_proc`; wins.
        hosts: None, or this host's name and slots; `horovodrun` serves several hosts.
        hostfile: in place of `hosts`: a file of lines `name slots=8`.
        start_timeout: seconds until every rank has started (default 30).
        output_filename: folder for copies of the ranks' output.
        verbose: prints where each rank runs.
        disable_cache, use_gloo, use_mpi: Horovod takes them; they have no effect.

    Returns:
        What the function returned, by rank.

    Raises:
        JobError: a rank failed; its traceback is in the output.
        TypeError: `func` is no function, or it or its arguments cannot be pickled.
        ValueError: a host is another one, `num_proc` is no positive number, or hosts are given
            twice.
        VariableError: a variable of the environment has a value that it cannot have.
    """
    # torch takes seconds, also in ranks, which import this module
    from taco_train.lightcc.launcher.static_job import run_static

    if not callable(func):
        raise TypeError(f"horovod.run calls a function, not {func!r:.100}")
    num_ranks = num_proc if np is None else np
    if num_ranks < 1:
        name = "num_proc" if np is None else "np"
        raise ValueError(f"{name} is {num_ranks}; it must be at least 1")
    if hosts is not None and hostfile is not None:
        raise ValueError(f"hosts is {hosts!r} and hostfile is {hostfile!r}: set one of them")
    settings_from()  # raises here, and not in every rank
    available = [HostSlots("localhost", num_ranks)]
    if hosts:
        available = parse_hosts(hosts)
    elif hostfile:
        available = read_host_file(Path(hostfile))
    for host in available:
        if not is_local(host.name):
            raise ValueError(f"horovod.run serves this host only, not {host.name}: use horovodrun")
    with tempfile.TemporaryDirectory(prefix="horovod-run-") as name:  # readable by this user alone
        folder = Path(name)
        call = _pickled(func, tuple(args), dict(kwargs or {}))
        (folder / _CALL).write_bytes(pickle.dumps((sys.path, call)))
        command = (sys.executable, "-m", "taco_train.lightcc.launcher.run_function", str(folder))
        run_static(
            Options(
                command=command,
                num_ranks=num_ranks,
                hosts=tuple(available),
                output_folder=Path(output_filename) if output_filename else None,
                start_timeout=start_timeout or _START_SECONDS,
                is_verbose=bool(verbose),
            )
        )
        files = [folder / _RESULT.format(rank) for rank in range(num_ranks)]
        return [pickle.loads(file.read_bytes()) for file in files]


def _pickled(function: Callable[..., Any], args: Any, kwargs: Any) -> bytes:
    name, pickler = getattr(function, "__name__", type(function).__name__), _pickler()
    if pickler is pickle and function.__module__ == "__main__":
        raise TypeError(f"{name} is a function of the script: pip install cloudpickle to send it")
    try:
        data: bytes = pickler.dumps((function, args, kwargs))
        return data
    except Exception as error:  # pickle raises many kinds
        raise TypeError(
            f"{name} or its arguments cannot be sent to the ranks: {error}; make such objects "
            "inside the function"
        ) from None


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
    returned = function(*args, **kwargs)
    try:
        value = _pickler().dumps(returned)
    except Exception as error:  # pickle raises many kinds
        sys.exit(f"the value of {function.__name__} cannot be sent to the caller: {error}")
    (folder / _RESULT.format(os.environ["HOROVOD_RANK"])).write_bytes(value)


if __name__ == "__main__":
    _call(Path(sys.argv[1]))
