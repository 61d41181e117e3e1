"""Masks of the tokens that rows of logits may sample, as the CPU kernels read them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taco_kernels.cpu.structs import TokenMasks
from taco_kernels.sampling_metadata import Array

WORD_BITS = 32
NO_MASKS = TokenMasks()


@dataclass(frozen=True, slots=True)
class MaskColumns:
    """Masks and the rows that they belong to; the kernels read this memory.

    Attributes:
        bits: int32 [num_masks, num_words]; bit i % 32 of word i // 32 is token i.
        of_row: int32 [num_rows], the mask of each row, or -1: the row may sample every token.
    """

    bits: Array
    of_row: Array

    @classmethod
    def of(cls, rows: Array, bits: Array, num_rows: int) -> MaskColumns:
        """
        Args:
            rows: integers [num_masks], the row of each mask, each at most once.
        """
        of_row = np.full(num_rows, -1, dtype=np.int32)
        of_row[rows] = np.arange(len(rows), dtype=np.int32)
        return cls(bits, of_row)

    def struct(self, num_rows: int, vocab_size: int) -> TokenMasks:
        """The kernels' struct, which points to these columns.

        Raises:
            ValueError: a column of the wrong type or shape.
        """
        num_words = -(-vocab_size // WORD_BITS)
        bits, of_row = self.bits, self.of_row
        if bits.dtype != np.int32 or bits.ndim != 2 or bits.shape[1] != num_words:
            raise ValueError(
                f"masks of {vocab_size} tokens must be int32 [any, {num_words}], not "
                f"{bits.dtype} {bits.shape}"
            )
        if of_row.dtype != np.int32 or of_row.shape != (num_rows,):
            raise ValueError(
                f"the masks of rows must be int32 [{num_rows}], not {of_row.dtype} {of_row.shape}"
            )
        if not bits.flags.c_contiguous or not of_row.flags.c_contiguous:
            raise ValueError("masks must be contiguous")
        return TokenMasks(bits.ctypes.data, num_words, of_row.ctypes.data)
