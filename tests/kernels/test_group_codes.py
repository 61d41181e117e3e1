"""Group codes with eight codes in a word are those with one in a byte."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from support.code_words import in_words
from support.group_codes import random_codes
from taco_kernels.code_packing import join, pack
from taco_kernels.group_codes import CodeKind

KINDS: tuple[CodeKind, ...] = ("int4", "table16")


@pytest.mark.parametrize("by_row", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_words_have_the_values_of_bytes(kind: CodeKind, by_row: bool) -> None:
    codes = random_codes(24, 104, kind, 32, offset="minima")
    words = in_words(codes, by_row=by_row)

    assert words.is_in_words
    assert words.shape == codes.shape
    assert torch.equal(words.code_bytes(), codes.codes)
    assert torch.equal(words.values(), codes.values())
    some = words.map_rows(lambda rows: rows[5:17])
    assert torch.equal(some.values(), codes.values()[5:17])
    packed = pack(join([words, some]))
    assert torch.equal(packed.values(), torch.cat([codes.values(), codes.values()[5:17]]))


@pytest.mark.parametrize("kind", ["int8", "e4m3"])
def test_only_codes_of_4_bits_are_in_words(kind: CodeKind) -> None:
    codes = random_codes(4, 16, kind, 16)
    with pytest.raises(ValueError, match=r"codes must be torch\.u?int8 \[4, 2\], not torch\.int32"):
        replace(codes, codes=torch.zeros(4, 2, dtype=torch.int32))
