"""PMIx, by which mpirun lets its ranks exchange a few bytes: one text, from rank 0 to all others.

libpmix is loaded by ctypes. The layouts are those of PMIx 3 to 5 (pmix_common.h): `pmix_proc_t` is
a namespace of 256 bytes and a rank, `pmix_value_t` a type and a union of 24 bytes, `pmix_info_t` a
key of 512 bytes, flags and a value.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import shutil
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from threading import Thread

from taco_train.cluster.store import RendezvousError

_KEY = b"taco_train.store"
_SUCCESS = 0
_BOOL, _STRING = 1, 3  # PMIX_BOOL, PMIX_STRING
_GLOBAL = 3  # PMIX_GLOBAL: for ranks of this host and of others
_NONE = ctypes.c_size_t(0)
_received: list[str] = []  # rank 0's text, once this process has exchanged it


class _Process(ctypes.Structure):
    _fields_ = [("nspace", ctypes.c_char * 256), ("rank", ctypes.c_uint32)]


class _Data(ctypes.Union):
    _fields_ = [
        ("string", ctypes.c_char_p),
        ("flag", ctypes.c_bool),
        ("bytes", ctypes.c_uint64 * 3),
    ]


class _Value(ctypes.Structure):
    _fields_ = [("type", ctypes.c_uint16), ("data", _Data)]


class _Info(ctypes.Structure):
    _fields_ = [("key", ctypes.c_char * 512), ("flags", ctypes.c_uint32), ("value", _Value)]


def received() -> str | None:
    """Rank 0's text where this process has exchanged it already, otherwise None."""
    return _received[0] if _received else None


def exchange(text: str | None, environment: Mapping[str, str], timeout: float) -> str:
    """Sends rank 0's text to all ranks, which call this together, once in a process.

    Args:
        text: rank 0's; None on the other ranks.
        environment: of this process; mpirun names its PMIx server in it.
        timeout: seconds to wait for the other ranks.

    Raises:
        RendezvousError: there is no PMIx server or no libpmix, or a call failed or did not return;
            the message names the call.
    """
    if "PMIX_RANK" not in environment:
        raise RendezvousError(
            "OMPI_COMM_WORLD_RANK is set but PMIX_RANK is not, so the address of rank 0 is "
            "unknown: start the ranks with Open MPI's mpirun, or set MASTER_ADDR and MASTER_PORT"
        )
    calls = _Calls(_load())
    outcome: Future[str] = Future()

    def run() -> None:
        try:
            outcome.set_result(_exchange(calls, text))
        except BaseException as error:
            outcome.set_exception(error)

    # Calls of PMIx wait without a limit. A thread that never returns must not keep the process.
    Thread(target=run, name="PMIx", daemon=True).start()
    try:
        _received[:] = [outcome.result(timeout)]
    except TimeoutError:
        raise RendezvousError(
            f"rank {environment['PMIX_RANK']}: {calls.current} has not returned within "
            f"{timeout:g} s: another rank has not come so far, or mpirun's daemons do not reach "
            "each other; read the output of all ranks, or pass -x MASTER_ADDR=HOST "
            "-x MASTER_PORT=PORT to mpirun, with the host of rank 0 and a free port there"
        ) from None
    return _received[0]


def _exchange(calls: _Calls, text: str | None) -> str:
    """There is a single fence, which gives every daemon all data.

    A second one right after it can hang: in Open MPI 4.1, a daemon may take its message for one of
    the fence before. So ranks must not depend on each other after the fence.
    """
    own = _Process()
    calls("PMIx_Init", ctypes.byref(own), None, _NONE)
    try:
        if text is not None:
            value = _Value(type=_STRING, data=_Data(string=text.encode()))
            calls("PMIx_Put", ctypes.c_uint8(_GLOBAL), _KEY, ctypes.byref(value))
            calls("PMIx_Commit")
        collect = _Info(b"pmix.collect", 0, _Value(type=_BOOL, data=_Data(flag=True)))
        calls("PMIx_Fence", None, _NONE, ctypes.byref(collect), ctypes.c_size_t(1))
        first = _Process(nspace=own.nspace, rank=0)
        found = ctypes.POINTER(_Value)()
        calls("PMIx_Get", ctypes.byref(first), _KEY, None, _NONE, ctypes.byref(found))
        value = found.contents
        told = value.data.string if value.type == _STRING else None
    finally:
        with suppress(RendezvousError):  # all is said, or another call has failed
            calls("PMIx_Finalize", None, _NONE)
    if told is None:
        raise RendezvousError("rank 0 told no address through PMIx")
    return str(told.decode())


class _Calls:
    """Calls libpmix, and knows which function was called last."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self.current = ""

    def __call__(self, function: str, *arguments: object) -> None:
        """Calls a function; raises RendezvousError where its status says that it failed."""
        self.current = function
        status = getattr(self._library, function)(*arguments)
        if status != _SUCCESS:
            reason = self._library.PMIx_Error_string(ctypes.c_int(status)).decode()
            raise RendezvousError(f"{function} failed: {reason} ({status})")


def find_library() -> str | None:
    """libpmix: the system's, or that of the Open MPI on the PATH (from its version 5 on)."""
    found = ctypes.util.find_library("pmix")
    if found is not None:
        return found
    mpirun = shutil.which("mpirun")
    folders = [Path("/usr/lib/x86_64-linux-gnu")]
    folders += [] if mpirun is None else [Path(mpirun).resolve().parents[1] / "lib"]
    files = [file for folder in folders for file in sorted(folder.glob("libpmix.so*"))]
    return str(files[0]) if files else None


def _load() -> ctypes.CDLL:
    name = find_library()
    if name is None:
        raise RendezvousError(
            "mpirun sets no MASTER_ADDR, and libpmix, which would tell the address of rank 0, is "
            "missing: install it (Debian: apt-get install libpmix2), or pass "
            "-x MASTER_ADDR=HOST -x MASTER_PORT=PORT to mpirun, with the host of rank 0 and a "
            "free port there"
        )
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        raise RendezvousError(f"libpmix cannot be loaded: {error}") from error
    library.PMIx_Error_string.restype = ctypes.c_char_p
    return library
