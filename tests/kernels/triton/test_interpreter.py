"""The accelerated Triton interpreter still detects errors in kernels."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="nothing is interpreted")


@triton.jit
def _add_and_multiply(numbers, sums, products, count: tl.constexpr):  # type: ignore[no-untyped-def]
    ids = tl.arange(0, count)
    values = tl.load(numbers + ids)
    tl.store(sums + ids, values + values)
    tl.store(products + ids, values * tl.load(numbers))


@pytest.mark.parametrize("number", [2**30, -(2**31), 65536, -65536])
def test_an_overflow_is_an_error(number: int) -> None:
    numbers = torch.tensor([number, 1], dtype=torch.int32)
    with pytest.raises(Exception, match="int32 overflow detected for operation"):
        _add_and_multiply[(1,)](numbers, numbers.clone(), numbers.clone(), 2)


def test_values_in_range_are_no_overflow() -> None:
    numbers = torch.tensor([-46340, 2**30 // 46340], dtype=torch.int32)
    sums, products = torch.empty_like(numbers), torch.empty_like(numbers)
    _add_and_multiply[(1,)](numbers, sums, products, 2)
    assert sums.tolist() == (2 * numbers).tolist()
    assert products.tolist() == (-46340 * numbers).tolist()
