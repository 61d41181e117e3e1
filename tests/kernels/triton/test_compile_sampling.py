"""Sampling kernels compiled for a GPU: they fit into registers with large vocabularies."""

from __future__ import annotations

import pytest

from support.triton_compile import Compiled, compile_calls

pytestmark = pytest.mark.slow

SCRIPT = """
import torch
from taco_kernels.triton.sample import DeviceSamplingMetadata, sample_tokens, most_likely_tokens
from taco_kernels.triton.logprobs import gather_logprobs
from taco_kernels.triton.mask import mask_logits
from taco_kernels.triton.penalize import PenaltyColumns, penalize, penalty_scratch

rows = 4
floats, doubles = torch.empty(rows), torch.empty(rows, dtype=torch.float64)
ints, longs = (torch.empty(rows, dtype=dtype) for dtype in (torch.int32, torch.int64))
metadata = DeviceSamplingMetadata(floats, floats, ints, floats, doubles)
for vocab_size in (128_256, 151_936):  # different blocks of tiles and of groups
    logits = torch.empty(rows, vocab_size)
    sample_tokens(logits, metadata, has_filters=True)
sample_tokens(logits, metadata, has_filters=False)
most_likely_tokens(logits)
for num_top in (0, 20, 128):
    gather_logprobs(logits, longs, num_top)
scratch = penalty_scratch(vocab_size, rows, logits.device)
tokens = torch.empty(rows, 8192, dtype=torch.int32)
columns = PenaltyColumns(longs, ints, ints, ints, floats, floats, floats, ints)
penalize(logits, tokens, columns, scratch)
mask_logits(logits, longs, torch.empty(rows, vocab_size // 32, dtype=torch.int32))
"""
KERNELS = {
    "_statistics_kernel",
    "_sample_kernel",
    "_sample_wide_kernel",
    "_find_most_likely",
    "_value_kernel",
    "_penalize_kernel",
    "_mask_kernel",
}


@pytest.fixture(scope="module")
def launches() -> list[Compiled]:
    return compile_calls(SCRIPT)


def test_every_kernel_fits_into_registers(launches: list[Compiled]) -> None:
    assert {launch.kernel for launch in launches} == KERNELS
    assert [launch for launch in launches if launch.spilled_bytes] == []


def test_row_statistics_load_sixteen_bytes_at_a_time(launches: list[Compiled]) -> None:
    surveys = [launch for launch in launches if launch.kernel == "_statistics_kernel"]
    assert all(statistics.count("LDG.E.128") >= 4 for statistics in surveys)
