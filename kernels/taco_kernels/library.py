"""Loads libtaco_kernels.so through ctypes and starts its thread pools."""

import ctypes
import os
import weakref
from collections.abc import Callable, Sequence
from ctypes import c_bool, c_char_p, c_double, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from taco_kernels import build
from taco_kernels.instruction_sets import (
    choose_instruction_set,
    instruction_set_names,
    missing_cpu_features,
)

# Result and argument types of the C functions in cpu_abi.h and native_abi.h (csrc/abi/).
_SIGNATURES: dict[str, tuple[Any, Sequence[Any]]] = {
    "taco_source_hash": (c_char_p, []),
    "taco_isa_name": (c_char_p, [c_int32]),
    "taco_isa_missing_feature": (c_char_p, [c_int32]),
    "taco_pool_create": (c_void_p, [c_int32, c_void_p, c_int32]),
    "taco_pool_destroy": (None, [c_void_p]),
    "taco_pool_forget_threads": (None, [c_void_p]),
    "taco_pool_trace": (None, [c_void_p, c_void_p, c_int64]),
    "taco_pool_bf16_operand_bytes": (c_int64, [c_void_p]),
    "taco_pool_int8_operand_bytes": (c_int64, [c_void_p]),
    "taco_pool_operand_tile_rows": (c_int64, [c_void_p]),
    "taco_pack": (None, [c_void_p, c_void_p, c_int64]),
    "taco_pack_codes": (None, [c_void_p, c_void_p, c_void_p]),
    "taco_read_rows": (None, [c_void_p, c_void_p, c_int64, c_void_p, c_void_p]),
    "taco_encode_rows": (
        None,
        [c_void_p, c_int32, c_int64, c_int64, c_void_p, c_int64, c_void_p, c_void_p, c_void_p],
    ),
    "taco_encode_operands": (
        None,
        [c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_void_p, c_void_p],
    ),
    "taco_multiply": (None, [c_void_p, c_void_p, c_int64]),
    "taco_multiply_argmax": (None, [c_void_p] * 8),
    "taco_route": (None, [c_void_p, c_void_p]),
    "taco_experts_scratch_bytes": (c_int64, [c_void_p, c_void_p]),
    "taco_multiply_experts": (None, [c_void_p, c_void_p]),
    "taco_adapters_scratch_bytes": (c_int64, [c_void_p, c_void_p]),
    "taco_multiply_adapted": (None, [c_void_p, c_void_p, c_void_p]),
    "taco_write_kv": (None, [c_void_p, c_void_p, c_void_p, c_int64, c_void_p]),
    "taco_append_kv": (None, [c_void_p, c_void_p, c_void_p]),
    "taco_attention_workspace": (c_int64, [c_void_p, c_void_p]),
    "taco_attend": (None, [c_void_p, c_void_p]),
    "taco_program_forward_bytes": (c_int64, [c_void_p, c_void_p, c_void_p]),
    "taco_program_forward": (None, [c_void_p, c_void_p, c_void_p]),
    "taco_program_logits_bytes": (c_int64, [c_void_p, c_void_p, c_void_p]),
    "taco_program_logits": (None, [c_void_p, c_void_p, c_void_p]),
    "taco_program_decode": (None, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "taco_norm_rows": (None, [c_void_p, c_void_p]),
    "taco_rotate_rows": (None, [c_void_p, c_void_p]),
    "taco_convolve": (None, [c_void_p, c_void_p]),
    "taco_recur": (None, [c_void_p, c_void_p]),
    "taco_map": (None, [c_void_p, c_void_p]),
    "taco_activate_rows": (None, [c_void_p, c_void_p]),
    "taco_apply_row_op": (None, [c_void_p, c_void_p]),
    "taco_sampling_scratch": (c_int64, [c_void_p, c_int32]),
    "taco_sample_tokens": (None, [c_void_p, c_void_p]),
    "taco_mask_logits": (None, [c_void_p, c_void_p, c_void_p]),
    "taco_gather_logprobs": (None, [c_void_p, c_void_p]),
    "taco_penalize": (None, [c_void_p, c_void_p]),
    "taco_lookahead_create": (c_void_p, [c_void_p]),
    "taco_lookahead_destroy": (None, [c_void_p]),
    "taco_lookahead_local_bytes": (c_int64, [c_void_p]),
    "taco_lookahead_learn": (None, [c_void_p, c_void_p]),
    "taco_lookahead_join": (None, [c_void_p, c_void_p]),
    "taco_lookahead_leave": (None, [c_void_p, c_void_p, c_int64]),
    "taco_lookahead_clear": (None, [c_void_p]),
    "taco_lookahead_append": (None, [c_void_p, c_void_p]),
    "taco_lookahead_draft": (c_int64, [c_void_p, c_void_p, c_void_p]),
    "taco_are_draft_trees": (c_bool, [c_void_p, c_int64, c_void_p, c_int32, c_int32]),
    "taco_accept_drafts": (c_int64, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "taco_begin_decode": (
        c_bool,
        [c_void_p, c_char_p, c_char_p, c_int64, c_char_p, c_char_p, c_int64, c_void_p],
    ),
    "taco_end_decode": (None, [c_void_p, c_void_p]),
    "taco_transpose_nibbles": (None, [c_void_p, c_int64, c_int64, c_void_p, c_void_p]),
    "taco_has_e4m3_nans": (c_bool, [c_void_p, c_int64]),
    "taco_draft_selector_create": (c_void_p, [c_void_p, c_int32, c_int32]),
    "taco_draft_selector_destroy": (None, [c_void_p]),
    "taco_draft_selector_start": (None, [c_void_p, c_void_p, c_int64]),
    "taco_draft_selector_select": (c_int64, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "taco_draft_selector_learn": (None, [c_void_p, c_void_p, c_void_p, c_void_p, c_int64]),
    "taco_draft_selector_observe_step": (None, [c_void_p, c_int64, c_double]),
    "taco_draft_selector_is_ready": (c_bool, [c_void_p]),
    "taco_draft_selector_estimate": (None, [c_void_p, c_int64, c_int64, c_void_p]),
    "taco_draft_selector_probabilities": (None, [c_void_p, c_void_p, c_void_p]),
}


class KernelLibraryError(Exception):
    """The library cannot be loaded; the message says how to build it."""


class CpuKernels:
    """The library and a pool of threads that compute with one instruction set.

    Call an operation as `kernels.lib.taco_multiply(kernels.pool, ...)` from any thread, one at a
    time. The pool's threads end with this object.

    Attributes:
        lib: the loaded library, with declared argument types.
        pool: the first argument of operations.
        isa: name of the instruction set.
        num_threads: threads of an operation, including the calling one.
        bf16_operand_bytes, int8_operand_bytes: bytes of one number of encoded rows.
        operand_tile_rows: encoded rows of bfloat16 and int8 lie in tiles of as many rows
            (csrc/matmul/operand_layout.h); 1: row after row.
    """

    def __init__(
        self,
        lib: ctypes.CDLL,
        isa: str,
        num_threads: int = 1,
        cpus: Sequence[int] | None = None,
    ) -> None:
        """Binds thread i to cpus[i], except thread 0, which is the calling thread.

        Raises:
            UnsupportedCpuError, ValueError: as choose_instruction_set.
        """
        # The check also asks the system for AMX's tiles: without leave they are illegal.
        choose_instruction_set(missing_cpu_features(lib), isa)
        self.lib = lib
        self.isa = isa
        self.num_threads = num_threads
        numbers = None if cpus is None else (c_int32 * num_threads)(*cpus)
        pool = lib.taco_pool_create(num_threads, numbers, instruction_set_names(lib).index(isa))
        if not pool:
            raise OSError(f"cannot start {num_threads} threads")
        self.pool = c_void_p(pool)
        self.bf16_operand_bytes: int = lib.taco_pool_bf16_operand_bytes(pool)
        self.int8_operand_bytes: int = lib.taco_pool_int8_operand_bytes(pool)
        self.operand_tile_rows: int = lib.taco_pool_operand_tile_rows(pool)
        # Not at exit: a thread may still be computing, and the process ends its threads anyway.
        weakref.finalize(self, lib.taco_pool_destroy, self.pool).atexit = False
        os.register_at_fork(after_in_child=_forget_threads_of(weakref.ref(self)))

    @property
    def has_tiles(self) -> bool:
        """Whether matrices of bfloat16 and int8 are multiplied on tiles (AMX)."""
        return self.operand_tile_rows > 1


def _forget_threads_of(kernels: weakref.ref[CpuKernels]) -> Callable[[], None]:
    def forget() -> None:
        if alive := kernels():
            alive.lib.taco_pool_forget_threads(alive.pool)

    return forget


def load_library(
    file: Path = build.LIBRARY, sources: Sequence[Path] = build.SOURCES
) -> ctypes.CDLL:
    """Loads the library. If `sources` exist, it must have been built from them.

    Raises:
        KernelLibraryError: the file is missing or broken, or was built from other sources.
    """
    remedy = build.failure(file) or "build it with `python -m taco_kernels.build`"
    if not file.exists():
        raise KernelLibraryError(f"there is no {file.name}: {remedy}")
    try:
        lib = ctypes.CDLL(str(file))
        lib.taco_source_hash.restype = c_char_p
        built_from = lib.taco_source_hash().decode()
        has_sources = all(folder.exists() for folder in sources)
        if has_sources and built_from != build.source_hash(sources):
            raise KernelLibraryError(f"{file.name} was built from other sources: {remedy}")
        _declare(lib)
    except (OSError, AttributeError) as error:
        raise KernelLibraryError(f"cannot load {file.name} ({error}): {remedy}") from error
    return lib


def keep_gil(lib: ctypes.CDLL) -> ctypes.PyDLL:
    """The same functions, called without releasing the GIL, for calls of a few microseconds.

    Releasing the GIL would make the caller wait for it again while another thread is busy.
    """
    holding = ctypes.PyDLL(lib._name)
    _declare(holding)
    return holding


@cache
def library() -> ctypes.CDLL:
    """The library for calls that need no thread pool.

    Raises:
        KernelLibraryError: as load_library.
    """
    return load_library()


@cache
def library_keeping_gil() -> ctypes.PyDLL:
    """`library` for calls of a few microseconds; keeps the GIL.

    Raises:
        KernelLibraryError: as load_library.
    """
    return keep_gil(library())


def _declare(lib: ctypes.CDLL) -> None:
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments


def load(
    num_threads: int = 1, cpus: Sequence[int] | None = None, *, isa: str | None = None
) -> CpuKernels:
    """Loads the kernels with `isa`, or $TACO_CPU_ISA, or the best set that this machine can run.

    Raises:
        KernelLibraryError, UnsupportedCpuError, ValueError: as load_library and
            choose_instruction_set.
    """
    lib = library()
    return CpuKernels(lib, _choose(lib, isa), num_threads, cpus)


def instruction_set() -> str:
    """Returns the set that `load` uses: $TACO_CPU_ISA, or the best that this machine can run.

    Raises:
        KernelLibraryError, UnsupportedCpuError, ValueError: as load.
    """
    return _choose(library(), None)


def _choose(lib: ctypes.CDLL, wanted: str | None) -> str:
    wanted = wanted or os.environ.get("TACO_CPU_ISA") or None
    return choose_instruction_set(missing_cpu_features(lib), wanted)
