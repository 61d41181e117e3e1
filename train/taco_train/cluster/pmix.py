"""PMIx, by which mpirun lets its ranks exchange a few bytes: one text, from rank 0 to all others.

libpmix is loaded by ctypes. The layouts are those of PMIx 3 to 5 (pmix_common.h): `pmix_proc_t` is
a namespace of 256 bytes and a rank, `pmix_value_t` a type and a union of 24 bytes.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import shutil
from collections.abc import Mapping
from pathlib import Path

from taco_train.cluster.store import RendezvousError

_KEY = b"taco_train.store"
_SUCCESS = 0
_STRING = 3  # PMIX_STRING
_GLOBAL = 3  # PMIX_GLOBAL: for ranks of this host and of others


class _Process(ctypes.Structure):
    _fields_ = [("nspace", ctypes.c_char * 256), ("rank", ctypes.c_uint32)]


class _Data(ctypes.Union):
    _fields_ = [("string", ctypes.c_char_p), ("bytes", ctypes.c_uint64 * 3)]


class _Value(ctypes.Structure):
    _fields_ = [("type", ctypes.c_uint16), ("data", _Data)]


def exchange(text: str | None, environment: Mapping[str, str]) -> str:
    """Tells rank 0's text to all ranks, which call this together.

    Args:
        text: rank 0's; None on the other ranks.
        environment: of this process; mpirun names its PMIx server in it.

    Raises:
        RendezvousError: there is no PMIx server or no libpmix, or a call failed.
    """
    if "PMIX_RANK" not in environment:
        raise RendezvousError(
            "OMPI_COMM_WORLD_RANK is set but PMIX_RANK is not, so the address of rank 0 is "
            "unknown: start the ranks with Open MPI's mpirun, or set MASTER_ADDR and MASTER_PORT"
        )
    library = _load()
    own = _Process()
    _check(library, "PMIx_Init", library.PMIx_Init(ctypes.byref(own), None, ctypes.c_size_t(0)))
    try:
        if text is not None:
            value = _Value(type=_STRING, data=_Data(string=text.encode()))
            status = library.PMIx_Put(ctypes.c_uint8(_GLOBAL), _KEY, ctypes.byref(value))
            _check(library, "PMIx_Put", status)
            _check(library, "PMIx_Commit", library.PMIx_Commit())
        status = library.PMIx_Fence(None, ctypes.c_size_t(0), None, ctypes.c_size_t(0))
        _check(library, "PMIx_Fence", status)
        first = _Process(nspace=own.nspace, rank=0)
        found = ctypes.POINTER(_Value)()
        status = library.PMIx_Get(
            ctypes.byref(first), _KEY, None, ctypes.c_size_t(0), ctypes.byref(found)
        )
        _check(library, "PMIx_Get", status)
        told = found.contents.data.string if found.contents.type == _STRING else None
        # No rank may leave before all have asked: rank 0's answer may be fetched from its host.
        status = library.PMIx_Fence(None, ctypes.c_size_t(0), None, ctypes.c_size_t(0))
        _check(library, "PMIx_Fence", status)
    finally:
        library.PMIx_Finalize(None, ctypes.c_size_t(0))
    if told is None:
        raise RendezvousError("rank 0 told no address through PMIx")
    return str(told.decode())


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


def _check(library: ctypes.CDLL, function: str, status: int) -> None:
    if status != _SUCCESS:
        reason = library.PMIx_Error_string(ctypes.c_int(status)).decode()
        raise RendezvousError(f"{function} failed: {reason} ({status})")
