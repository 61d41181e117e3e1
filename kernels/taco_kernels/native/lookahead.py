"""The lookahead cache: n-gram drafts from earlier tokens of this and other sequences.

C++ does the work (csrc/lookahead/cache.h); this module checks columns and passes pointers.
"""

import ctypes
import hashlib
import os
import weakref
from collections.abc import Sequence
from ctypes import Structure, c_bool, c_int32, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from functools import partial

import numpy as np
import numpy.typing as npt

from taco_kernels.library import CpuKernels, keep_gil
from taco_kernels.native import memory
from taco_kernels.native.draft_trees import DraftTrees

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]

# As in csrc/lookahead/options.h and draft_tree.h.
MAX_MATCH = 16
MAX_TREE = 63
# Calls for up to this many sequences take microseconds and keep the GIL.
_QUICK_ROWS = 16
MAX_PATHS = 16
MAX_CELL = 64
WEIGHT_ONE = 16
NUM_LENGTHS = 6
NUM_SHARES = 4
NUM_CLASSES = 2 * NUM_LENGTHS * NUM_SHARES + NUM_LENGTHS

_ENTRY_BYTES = 16
# One entry per pair of a context and the token that followed, plus a quarter of slack, so that a
# full table seldom has full windows.
_TABLE_BYTES = _ENTRY_BYTES * 5 // 4
_LOCAL_BYTES = 30


class Mode(IntEnum):
    RAW = 0
    TURBO = 1
    HYBRID = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """Options of the cache; csrc/lookahead/options.h describes those without a comment here.

    Weights and shares are floats here, fixed-point numbers there.

    Attributes:
        num_tokens: capacity in tokens, each of which takes bytes_per_token().
        has_table: sequences learn from each other.
        target_parallelism: maximum rows plus drafts of a step; 0 is no limit.
        secret: key of the hashes, 16 bytes; caches with equal keys draft the same. Empty: random.
    """

    num_slots: int
    max_len: int
    vocab_size: int
    eos_ids: tuple[int, ...]
    num_tokens: int
    has_table: bool = True
    mode: Mode = Mode.HYBRID
    copy_length: int = 7
    raw_min: int = 1
    raw_max: int = 2
    raw_paths: int = 1
    min_match: int = 2
    max_match: int = 7
    cell_size: int = 16
    cell_top: int = 16
    max_paths: int = 2
    threshold: float = 2.0
    decay: float = 0.5
    start_weight: float = 0.0
    target_parallelism: int = 0
    secret: bytes = b""


def table_bytes_per_token(min_match: int, max_match: int) -> int:
    return _TABLE_BYTES * (max_match - min_match + 1)


def bytes_per_token(min_match: int, max_match: int) -> int:
    """Bytes per token of the table and the sequences' own indexes: 150 for contexts of 2 to 7."""
    return table_bytes_per_token(min_match, max_match) + _LOCAL_BYTES


class LookaheadCache:
    """Learns from the tokens of sequences and drafts their next tokens. Not thread safe.

    Attributes:
        table_bytes: size of the table, allocated at start.
        max_local_bytes: limit on the sequences' own indexes.
    """

    def __init__(self, kernels: CpuKernels, options: CacheOptions, priors: FloatArray) -> None:
        """`priors`: the assumed acceptance rate of each class of drafts.

        Raises:
            MemoryError: the system has no room for the table.
            ValueError: `priors` is not float32 [NUM_CLASSES], or the table has no room for a cell.
        """
        self._kernels = kernels
        self._num_slots = options.num_slots
        self._secret = options.secret or os.urandom(16)
        per_token = table_bytes_per_token(options.min_match, options.max_match)
        self.table_bytes = options.num_tokens * per_token if options.has_table else 0
        if options.has_table and self.table_bytes < MAX_CELL * _ENTRY_BYTES:
            raise ValueError(f"a table of {self.table_bytes} bytes has no room for a cell")
        self.max_local_bytes = options.num_tokens * _LOCAL_BYTES
        self._table = memory.allocate(self.table_bytes)
        # Now: contexts are spread over all pages, and the first prompts would wait for each page
        # fault.
        self._table.zero_()
        eos_ids = np.array(options.eos_ids, dtype=np.int32)
        filled = _Options(
            options.mode,
            options.num_slots,
            options.max_len,
            options.vocab_size,
            options.copy_length,
            options.raw_min,
            options.raw_max,
            options.raw_paths,
            options.min_match,
            options.max_match,
            options.cell_size,
            options.cell_top,
            options.max_paths,
            round(options.threshold * WEIGHT_ONE),
            round(options.decay * 2**16),
            round(options.start_weight * WEIGHT_ONE),
            options.target_parallelism,
            eos_ids.size,
            eos_ids.ctypes.data,
            _column(priors, np.float32, NUM_CLASSES),
            (c_uint64 * 2).from_buffer_copy(self._secret),
            self._table.data_ptr() if options.has_table else None,
            self.table_bytes,
            self.max_local_bytes,
        )
        lib = kernels.lib
        self._quick_lib = keep_gil(lib)
        self._cache = c_void_p(lib.taco_lookahead_create(ctypes.byref(filled)))
        weakref.finalize(self, lib.taco_lookahead_destroy, self._cache).atexit = False

    @property
    def local_bytes(self) -> int:
        """Bytes that the sequences' own indexes use now."""
        return int(self._kernels.lib.taco_lookahead_local_bytes(self._cache))

    def learn(self, num_tokens: IntArray, token_ids: IntArray, salts: Sequence[str]) -> None:
        """Learn texts that are no sequences of the batch, concatenated in `token_ids`."""
        count = num_tokens.size
        namespaces = self._namespaces(salts, count)
        texts = _Sequences(
            count,
            None,
            None,
            _column(num_tokens, np.int32, count),
            _column(token_ids, np.int32, sum(num_tokens.tolist())),
            namespaces.ctypes.data,
            False,
        )
        self._kernels.lib.taco_lookahead_learn(self._cache, ctypes.byref(texts))

    def join(
        self,
        slots: IntArray,
        num_prompt_tokens: IntArray,
        num_tokens: IntArray,
        token_ids: IntArray,
        salts: Sequence[str],
        *,
        skips_prompts: bool = False,
    ) -> None:
        """Add sequences. Prompts of those without output are learned for other sequences too.

        Args:
            salts: one per sequence, or empty. Sequences learn only from those with an equal salt.
            skips_prompts: prompts are learned neither for other sequences nor for their own.
        """
        count = slots.size
        namespaces = self._namespaces(salts, count)
        joined = _Sequences(
            count,
            self._slots(slots),
            _column(num_prompt_tokens, np.int32, count),
            _column(num_tokens, np.int32, count),
            _column(token_ids, np.int32, sum(num_tokens.tolist())),
            namespaces.ctypes.data,
            skips_prompts,
        )
        self._kernels.lib.taco_lookahead_join(self._cache, ctypes.byref(joined))

    def leave(self, slots: IntArray) -> None:
        self._kernels.lib.taco_lookahead_leave(self._cache, self._slots(slots), slots.size)

    def clear(self) -> None:
        """Remove all sequences."""
        self._kernels.lib.taco_lookahead_clear(self._cache)

    def append(self, slots: IntArray, num_tokens: IntArray, token_ids: IntArray) -> None:
        """Append tokens to sequences, `num_tokens` each; other sequences learn from them too."""
        appended = _Tokens(
            slots.size,
            self._slots(slots),
            _column(num_tokens, np.int32, slots.size),
            _column(token_ids, np.int32, sum(num_tokens.tolist())),
        )
        self._lib_for(slots.size).taco_lookahead_append(self._cache, ctypes.byref(appended))

    def draft(self, slots: IntArray, max_nodes: IntArray) -> DraftTrees:
        """Draft a tree for each slot, of at most `max_nodes` nodes."""
        count = slots.size
        num_nodes = np.empty(count, dtype=np.int32)
        columns = np.empty((3, count * MAX_TREE), dtype=np.int32)
        first, step = columns.ctypes.data, columns.strides[0]
        trees = _Trees(
            count,
            self._slots(slots),
            _column(max_nodes, np.int32, count),
            num_nodes.ctypes.data,
            first,
            first + step,
            first + 2 * step,
        )
        total = self._lib_for(count).taco_lookahead_draft(
            self._kernels.pool, self._cache, ctypes.byref(trees)
        )
        return DraftTrees(num_nodes, *columns[:, :total])

    def _lib_for(self, num_rows: int) -> ctypes.CDLL:
        return self._kernels.lib if num_rows > _QUICK_ROWS else self._quick_lib

    def _slots(self, slots: IntArray) -> int:
        numbers = slots.tolist()  # faster than NumPy's reductions for few rows
        if numbers and not 0 <= min(numbers) <= max(numbers) < self._num_slots:
            raise ValueError(f"slots must lie in 0 to {self._num_slots - 1}, not {slots}")
        return _column(slots, np.int32, slots.size)

    def _namespaces(self, salts: Sequence[str], count: int) -> npt.NDArray[np.uint64]:
        """64-bit namespaces of the salts, unpredictable without the secret."""
        digest = partial(hashlib.blake2b, key=self._secret, digest_size=8)
        if not salts:
            salts = [""] * count
        digests = b"".join(digest(salt.encode()).digest() for salt in salts)
        namespaces = np.frombuffer(digests, dtype=np.uint64)
        if namespaces.size != count:
            raise ValueError(f"{len(salts)} salts for {count} sequences")
        return namespaces


def _column(column: npt.NDArray[np.generic], dtype: npt.DTypeLike, count: int) -> int:
    if column.dtype != dtype or column.shape != (count,) or not column.flags.c_contiguous:
        raise ValueError(
            f"a column must be {np.dtype(dtype)} [{count}], not {column.dtype} {column.shape}"
        )
    return int(column.ctypes.data)


class _Options(Structure):
    _fields_ = (
        ("mode", c_int32),
        ("num_slots", c_int32),
        ("max_len", c_int32),
        ("vocab_size", c_int32),
        ("copy_length", c_int32),
        ("raw_min", c_int32),
        ("raw_max", c_int32),
        ("raw_paths", c_int32),
        ("min_match", c_int32),
        ("max_match", c_int32),
        ("cell_size", c_int32),
        ("cell_top", c_int32),
        ("max_paths", c_int32),
        ("threshold", c_int32),
        ("decay", c_int32),
        ("start_weight", c_int32),
        ("target_parallelism", c_int32),
        ("num_eos", c_int32),
        ("eos_ids", c_void_p),
        ("priors", c_void_p),
        ("secret", c_uint64 * 2),
        ("table", c_void_p),
        ("table_bytes", c_int64),
        ("local_bytes", c_int64),
    )


class _Sequences(Structure):
    _fields_ = (
        ("count", c_int64),
        ("slots", c_void_p),
        ("num_prompt", c_void_p),
        ("num_tokens", c_void_p),
        ("token_ids", c_void_p),
        ("namespaces", c_void_p),
        ("skips_prompt", c_bool),
    )


class _Tokens(Structure):
    _fields_ = (
        ("count", c_int64),
        ("slots", c_void_p),
        ("num_tokens", c_void_p),
        ("token_ids", c_void_p),
    )


class _Trees(Structure):
    _fields_ = (
        ("count", c_int64),
        ("slots", c_void_p),
        ("max_nodes", c_void_p),
        ("num_nodes", c_void_p),
        ("token_ids", c_void_p),
        ("parents", c_void_p),
        ("classes", c_void_p),
    )
