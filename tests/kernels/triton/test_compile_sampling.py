"""The kernels as a GPU gets them: for vocabularies of today's models, within its registers."""

from __future__ import annotations

import pytest

from support.triton_compile import compile_calls

SCRIPT = """
import torch
from taco_kernels.triton.choose import ChoiceColumns, choose_tokens, most_likely_tokens
from taco_kernels.triton.logprobs import gather_logprobs
from taco_kernels.triton.penalize import PenaltyColumns, penalize, penalty_scratch

rows = 4
logits = torch.empty(rows, {vocab_size})
floats, doubles = torch.empty(rows), torch.empty(rows, dtype=torch.float64)
ints, longs = (torch.empty(rows, dtype=dtype) for dtype in (torch.int32, torch.int64))

most_likely_tokens(logits)
choice = ChoiceColumns(floats, floats, ints, floats, doubles)
for has_filters in (False, True):
    choose_tokens(logits, choice, has_filters=has_filters)
for num_top in (0, 20, 128):
    gather_logprobs(logits, longs, num_top)
scratch = penalty_scratch({vocab_size}, rows, logits.device)
tokens = torch.empty(rows, 8192, dtype=torch.int32)
columns = PenaltyColumns(longs, ints, ints, ints, floats, floats, floats, ints)
penalize(logits, tokens, columns, scratch)
"""
KERNELS = {
    "_survey_kernel",
    "_settle_kernel",
    "_choose_wide_kernel",
    "_find_most_likely",
    "_value_kernel",
    "_penalize_kernel",
}


@pytest.mark.parametrize("vocab_size", [128_256, 151_936])
def test_every_kernel_fits_into_registers(vocab_size: int) -> None:
    launches = compile_calls(SCRIPT.format(vocab_size=vocab_size))
    assert {launch.kernel for launch in launches} == KERNELS
    assert [launch for launch in launches if launch.spilled_bytes] == []


def test_the_survey_reads_sixteen_bytes_at_a_time() -> None:
    launches = compile_calls(SCRIPT.format(vocab_size=151_936))
    surveys = [launch for launch in launches if launch.kernel == "_survey_kernel"]
    assert all(survey.count("LDG.E.128") >= 4 for survey in surveys)
