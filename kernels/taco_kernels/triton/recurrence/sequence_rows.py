"""A step's sequences and the rows of their states, as the kernels of recurrences read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


class SequenceRows(Protocol):
    """The tokens of each sequence in a step, and the rows of its states; int32 on the device.

    Different sequences write different rows, and none writes a row that another one reads. A
    sequence without tokens reads and writes none. The host reads only `query_lens_host`, so that
    launches can be captured in a CUDA graph.
    """

    @property
    def query_start(self) -> Tensor:
        """[num_seqs + 1], the first token of each sequence; those from the last number on are
        padding, and what is computed for them is undefined."""
        ...

    @property
    def rows(self) -> Tensor:
        """[num_seqs], the rows that get the states after a sequence's tokens."""
        ...

    @property
    def sources(self) -> Tensor:
        """[num_seqs], the rows of the states before them, which may be `rows`; -1: zeros."""
        ...

    @property
    def saved_tokens(self) -> Tensor:
        """[num_seqs], tokens after which the state is also stored in `saved_rows`; 0: it is not."""
        ...

    @property
    def saved_rows(self) -> Tensor:
        """[num_seqs], other rows than `rows` and `sources`."""
        ...

    @property
    def query_lens_host(self) -> Sequence[int]:
        """Upper bounds of the sequences' tokens."""
        ...


def row_arguments(states: SequenceRows) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The kernels' arguments.

    Raises:
        ValueError: a tensor has the wrong shape, dtype or strides.
    """
    num_seqs = len(states.rows)
    arguments = (
        states.query_start,
        states.rows,
        states.sources,
        states.saved_tokens,
        states.saved_rows,
    )
    for name, column, size in zip(
        ("query_start", "rows", "sources", "saved_tokens", "saved_rows"),
        arguments,
        (num_seqs + 1, *[num_seqs] * 4),
        strict=True,
    ):
        if column.dtype != torch.int32 or column.shape != (size,) or not column.is_contiguous():
            raise ValueError(
                f"{name} must be contiguous int32 [{size}], not {column.dtype} "
                f"{list(column.shape)} with strides {column.stride()}"
            )
    return arguments


def check_memory(memory: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless the memory has float32 states of this shape, each contiguous."""
    if (
        memory.dtype != torch.float32
        or memory.shape[1:] != shape
        or (len(memory) > 0 and not memory[0].is_contiguous())
    ):
        raise ValueError(
            f"the memory of states must be float32 [num_rows, {', '.join(map(str, shape))}] with "
            f"contiguous states, not {memory.dtype} {list(memory.shape)} with strides "
            f"{memory.stride()}"
        )


def check_tokens(name: str, x: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless x has floats of this shape, adjacent on its last axis."""
    if x.dtype not in _DTYPES or x.shape != shape or x.stride(-1) != 1:
        raise ValueError(
            f"{name} must be float16, bfloat16 or float32 {list(shape)} with adjacent numbers, not "
            f"{x.dtype} {list(x.shape)} with strides {x.stride()}"
        )


def check_heads(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raise ValueError unless these have the same tokens, and heads of keys divide the others."""
    if key.dim() != 3 or value.dim() != 3 or not key.shape[1] or value.shape[1] % key.shape[1]:
        raise ValueError(
            "key and value must be [num_tokens, heads, numbers], and the key's heads must divide "
            f"the value's, not {list(key.shape)} and {list(value.shape)}"
        )
    for name, x, like in (("query", query, key), ("key", key, key), ("value", value, value)):
        check_tokens(name, x, (len(value), *like.shape[1:]))


def check_parameter(name: str, parameter: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless the parameter has floats of this shape and is contiguous."""
    if parameter.dtype not in _DTYPES or parameter.shape != shape or not parameter.is_contiguous():
        raise ValueError(
            f"{name} must be contiguous float16, bfloat16 or float32 {list(shape)}, not "
            f"{parameter.dtype} {list(parameter.shape)} with strides {parameter.stride()}"
        )
