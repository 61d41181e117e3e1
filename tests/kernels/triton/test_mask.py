"""Masks on logits around the sizes of words and programs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support import sampling_cases as cases
from support.triton_interpreter import DEVICE
from taco_kernels.sampling_metadata import Array
from taco_kernels.triton.mask import mask_logits


def mask(logits: Tensor, rows: Array, bits: Array) -> None:
    changed = logits.to(DEVICE)
    mask_logits(changed, *(torch.from_numpy(column).to(DEVICE) for column in (rows, bits)))
    logits.copy_(changed)


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 4096, 4100, 9000])
def test_masks_ban_what_they_do_not_allow(vocab_size: int) -> None:
    cases.check_masks(mask, vocab_size)


def test_wrong_arguments_are_rejected() -> None:
    logits = torch.zeros(2, 40, device=DEVICE)
    rows = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    bits = torch.zeros(1, 2, dtype=torch.int32, device=DEVICE)
    with pytest.raises(ValueError, match="float32 rows"):
        mask_logits(logits.double(), rows, bits)
    with pytest.raises(ValueError, match=r"rows must be torch.int64 \[1\]"):
        mask_logits(logits, rows.int(), bits)
    with pytest.raises(ValueError, match=r"bits must be int32 \[1, 2\]"):
        mask_logits(logits, rows, bits[:, :1])
