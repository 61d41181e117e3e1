"""Decode steps of a worker's batch: their input and output (csrc/steps/decode_rows.h)."""

from __future__ import annotations

from ctypes import Structure, addressof, c_bool, c_int32, c_int64, c_void_p
from typing import Any

import numpy as np
import numpy.typing as npt

from taco_kernels.library import library_keeping_gil

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.int32]

_INPUT = (
    *("token_ids", "positions", "query_start", "seq_lens", "output_rows", "adapter_ids"),
    "block_tables",
)
_OUTPUT = ("sampled", "logprobs", "entries_of_row", "entry_token_ids", "entry_logprobs")


class SlotColumns(Structure):
    """The columns of a batch, one entry a slot; `SlotColumns.of` fills it."""

    _fields_ = (
        ("num_slots", c_int32),
        ("max_model_len", c_int32),
        ("block_size", c_int32),
        ("num_kv_blocks", c_int32),
        ("max_blocks", c_int32),
        ("not_greedy", c_int32),
        ("is_occupied", c_void_p),
        ("features", c_void_p),
        ("num_logprobs", c_void_p),
        ("adapter_ids", c_void_p),
        ("num_tokens", c_void_p),
        ("num_computed_tokens", c_void_p),
        ("num_blocks", c_void_p),
        ("block_tables", c_void_p),
        ("token_ids", c_void_p),
        ("is_seen", c_void_p),
    )

    @classmethod
    def of(
        cls, *, block_size: int, num_kv_blocks: int, not_greedy: int, **columns: Array
    ) -> SlotColumns:
        """
        Args:
            num_kv_blocks: of the KV cache.
            not_greedy: features of slots that need another step than a greedy one.
            columns: by field; the caller keeps them alive.

        Raises:
            ValueError: a column has another type than int32 or bool, or is not contiguous.
        """
        for name, column in columns.items():
            wanted = np.bool_ if name.startswith("is_") else np.int32
            if column.dtype != wanted or not column.flags.c_contiguous:
                raise ValueError(f"{name} must be contiguous {np.dtype(wanted)}")
        num_slots, max_model_len = columns["token_ids"].shape
        max_blocks = columns["block_tables"].shape[1]
        numbers = (num_slots, max_model_len, block_size, num_kv_blocks, max_blocks, not_greedy)
        addresses = {name: column.ctypes.data for name, column in columns.items()}
        return cls(*numbers, **addresses)


class _Rows(Structure):
    _fields_ = (
        ("num_rows", c_int64),
        ("table_columns", c_int64),
        ("gives_logprobs", c_bool),
        ("has_failed_rows", c_bool),
        ("has_adapters", c_bool),
        ("num_entries", c_int64),
        *((name, c_void_p) for name in ("slots", *_INPUT, *_OUTPUT)),
    )


class DecodeRows:
    """The rows of one decode step at a time: each runs its last token and gets the likeliest next.

    The arrays are reused. Only the first `num_rows` entries are those of the current step.

    Attributes:
        max_rows: the number of slots.
        fields: numbers of the current step, for reading: num_rows, table_columns, gives_logprobs,
            has_failed_rows, has_adapters, num_entries.
        addresses: of the arrays, by name. The model reads token_ids, positions, query_start,
            seq_lens, output_rows, adapter_ids (if `has_adapters`) and block_tables [num_rows,
            table_columns]. It writes `sampled` (int32; negative: no logit is finite) and, if
            `gives_logprobs`, `logprobs` (float32).
    """

    def __init__(self, slots: SlotColumns) -> None:
        """
        Raises:
            KernelLibraryError: the library cannot be loaded.
        """
        library = library_keeping_gil()
        self._begin, self._end = library.taco_begin_decode, library.taco_end_decode
        self._slots = slots
        self._is_seen = np.zeros(slots.num_slots, dtype=np.bool_)
        slots.is_seen = self._is_seen.ctypes.data
        self._arrays: dict[str, Array] = {
            name: np.empty(slots.num_slots, dtype=np.int32) for name in ("slots", *_INPUT, *_OUTPUT)
        }
        self._arrays["query_start"] = np.empty(slots.num_slots + 1, dtype=np.int32)
        self._arrays["block_tables"] = np.empty(slots.num_slots * slots.max_blocks, dtype=np.int32)
        for name in ("logprobs", "entry_logprobs"):
            self._arrays[name] = np.empty(slots.num_slots, dtype=np.float32)
        self.max_rows: int = slots.num_slots
        self.addresses = {name: array.ctypes.data for name, array in self._arrays.items()}
        self.fields = _Rows(**self.addresses)
        self._slots_at, self._fields_at = addressof(slots), addressof(self.fields)

    def begin(
        self,
        slots: IntArray,
        num_new_tokens: IntArray,
        appended_slots: IntArray,
        appended_blocks: IntArray,
    ) -> bool:
        """Append blocks to the batch's tables, and gather the model's input of the rows.

        Args:
            slots, num_new_tokens: of each row, int32.
            appended_slots, appended_blocks: of each block, int32.

        Returns:
            False, and nothing has changed, if the rows are not a decode step, or not a valid one.
        """
        num_rows, num_appended = slots.size, appended_slots.size
        # Bytes cost less than addresses of arrays.
        columns = (slots.tobytes(), num_new_tokens.tobytes())
        blocks = (appended_slots.tobytes(), appended_blocks.tobytes())
        if [len(each) for each in (*columns, *blocks)] != [
            *(4 * num_rows, 4 * num_rows),
            *(4 * num_appended, 4 * num_appended),
        ]:
            return False
        is_begun: bool = self._begin(
            self._slots_at, *columns, num_rows, *blocks, num_appended, self._fields_at
        )
        return is_begun

    def end(self) -> None:
        """Append the sampled tokens to their sequences."""
        self._end(self._slots_at, self._fields_at)

    def sampled(self) -> IntArray:
        """A copy of the sampled tokens: int32 [num_rows]."""
        return self._arrays["sampled"][: self.fields.num_rows].copy()

    def logprob_entries(self) -> tuple[IntArray, IntArray, npt.NDArray[np.float32]]:
        """Copies of the log probabilities, after `end`: the entries of each row (0 or 1), and the
        token and the value of each entry."""
        num_rows, num_entries = self.fields.num_rows, self.fields.num_entries
        return (
            self._arrays["entries_of_row"][:num_rows].copy(),
            self._arrays["entry_token_ids"][:num_entries].copy(),
            self._arrays["entry_logprobs"][:num_entries].copy(),
        )
