"""Codes of a few bits in words."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from taco_kernels.bit_stream import unpack


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("shape", [(3, 840), (90, 840), (0, 840), (2, 3, 840)])
def test_codes_are_the_bits_of_the_words_in_order(bits: int, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(bits)
    words = torch.randint(-(2**31), 2**31, shape, generator=generator).int()
    octets = words.numpy().view(np.uint8)
    bits_of_rows = np.unpackbits(octets, axis=-1, bitorder="little")
    stream = bits_of_rows.reshape(*shape[:-1], shape[-1] * 32 // bits, bits)
    expected = np.packbits(stream, axis=-1, bitorder="little")[..., 0]
    found = unpack(words, bits)
    assert found.dtype == torch.uint8
    assert np.array_equal(found.numpy(), expected)
    assert torch.equal(unpack(words.mT.contiguous().mT, bits), found)
