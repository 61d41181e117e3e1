"""The memory that a step of attention needs for its sums."""

import ctypes

import pytest
import torch

from support.cpu_kernels import EMULATED, NATIVE, kernels_of
from taco_kernels.attention_options import AttentionOptions
from taco_kernels.cpu.attention import attention_struct
from taco_kernels.cpu.kv_cache import PagedBatch, PagedKV
from taco_kernels.kv_entry import KVEntry
from taco_kernels.kv_format import KVFormat

BLOCK_SIZE, NUM_HEADS = 16, 8
LONG = 64 * BLOCK_SIZE
ENTRY = KVEntry(num_heads=2, key_dim=64, value_dim=64)
CACHE = PagedKV.allocate(LONG // BLOCK_SIZE, KVFormat(torch.bfloat16), BLOCK_SIZE, [ENTRY])
DECODE, PREFILL = (1, LONG), (256, 256)


def workspace_bytes(isa: str, *sequences: tuple[int, int]) -> int:
    """For sequences of (tokens of the step, length), on 2 threads."""
    kernels = kernels_of(isa, 2)
    counts, lengths = zip(*sequences, strict=True)
    batch = PagedBatch(
        torch.tensor([0, *counts]).cumsum(0).int(),
        torch.tensor(lengths).int(),
        torch.arange(LONG // BLOCK_SIZE).int().expand(len(counts), -1).contiguous(),
    )
    struct = attention_struct(0, NUM_HEADS, AttentionOptions(scale=1.0))
    struct.cache, struct.batch = CACHE.struct(), batch.struct()
    return int(kernels.lib.taco_attention_workspace(kernels.pool, ctypes.byref(struct)))


@pytest.mark.parametrize("isa", [*NATIVE, *EMULATED])
def test_sums_of_a_long_context_take_the_space_of_its_own_rows(isa: str) -> None:
    """However many rows the query blocks of other sequences have."""
    one = workspace_bytes(isa, DECODE)
    several = workspace_bytes(isa, *[DECODE] * 4)
    assert several > one  # they are split, and their sums kept
    prefill = workspace_bytes(isa, PREFILL)
    assert workspace_bytes(isa, PREFILL, *[DECODE] * 4) <= prefill + several


@pytest.mark.parametrize("isa", [*NATIVE, *EMULATED])
def test_the_space_of_a_thread_grows_with_query_blocks(isa: str) -> None:
    assert workspace_bytes(isa, (1, 16)) < workspace_bytes(isa, PREFILL)
