"""Products with codes compiled for Hopper: tensor cores, asynchronous loads, no register spills."""

from __future__ import annotations

import pytest

from support.triton_compile import Compiled, compile_calls

pytestmark = pytest.mark.slow

# Llama 3 8B's gate_up for one row, 64 and many; experts of 4 bits at one token and at a prefill's.
CALLS = """
import torch
from taco_kernels.packed_codes import PackedCodes, PackedExperts
from taco_kernels.triton.codes.experts import multiply_coded_experts
from taco_kernels.triton.codes.multiply import multiply_codes

def packed(kind, n, k, group, *, zero=0, zeros=False, minima=False):
    is_4_bit = kind in ("int4", "table16", "e2m1")
    tile = min(64 if is_4_bit else 128, group)
    shape = (k // (2 * tile), n, tile) if is_4_bit else (n, k)
    def grouped(dtype):
        return torch.empty(k // group, n, dtype=dtype)
    return PackedCodes(
        kind, k, tile, group, torch.empty(shape, dtype=torch.uint8), torch.empty(n),
        None if group == k else grouped(torch.half), zero,
        grouped(torch.int8) if zeros else None, grouped(torch.half) if minima else None,
        torch.empty(16) if kind == "table16" else None,
    )

for dtype in (torch.bfloat16, torch.float16):
    for weight in (
        packed("int4", 28672, 4096, 128, zero=8),
        packed("int4", 28672, 4096, 128, zeros=True),
        packed("int4", 28672, 4096, 32, minima=True),
        packed("int8", 28672, 4096, 4096),
        packed("e4m3", 28672, 4096, 4096),
        packed("table16", 28672, 4096, 64),
        packed("e2m1", 28672, 4096, 32),
    ):
        for rows in (1, 64, 8192):
            multiply_codes(torch.empty(rows, 4096, dtype=dtype), weight)
multiply_codes(torch.empty(1, 4096, dtype=torch.half), packed("int4", 4096, 4096, 128, zero=8))
gate_up = PackedExperts(packed("int4", 64 * 2048, 2048, 128, zero=8), 64)
down = PackedExperts(packed("int4", 64 * 2048, 1024, 128, zero=8), 64)
for rows in (1, 8192):
    ids, weights = torch.empty(rows, 8, dtype=torch.int32), torch.empty(rows, 8)
    multiply_coded_experts(
        torch.empty(rows, 2048, dtype=torch.bfloat16), ids, weights, gate_up, down
    )
"""


@pytest.fixture(scope="module")
def launches() -> list[Compiled]:
    return compile_calls(CALLS)


def test_all_compile_without_spills(launches: list[Compiled]) -> None:
    assert len(launches) == 2 * 7 * 3 + 2 + 2 * 5
    for launch in launches:
        assert launch.spilled_bytes == 0, launch


def test_products_use_tensor_cores_and_load_ahead(launches: list[Compiled]) -> None:
    names = ("_product_kernel", "_gate_up_kernel", "_down_kernel")
    products = [one for one in launches if one.kernel in names]
    assert len(products) == 2 * 7 * 3 + 1 + 4
    for launch in products:
        assert launch.count("HGMMA") + launch.count("HMMA") > 0, launch
        assert launch.count("LDGSTS") > 0, launch


def test_few_rows_of_4_bits_take_few_instructions(launches: list[Compiled]) -> None:
    """A program of one row decodes 64 codes a thread and iteration, two of them at once."""
    first = launches[0]
    assert first.count("HADD2") + first.count("HFMA2") < 64
    assert first.count("I2F") == 0
