"""Elementwise kernels compiled for Hopper: wide loads, no register spills."""

from __future__ import annotations

import pytest

from support.triton_compile import Compiled, compile_calls

pytestmark = pytest.mark.slow

# Llama 3 8B's shapes at one token and at a prefill's, and a width that is no power of two.
CALLS = """
import torch
from taco_kernels.triton.activation import act_mul
from taco_kernels.triton.block_copy import copy_blocks
from taco_kernels.triton.elementwise import add
from taco_kernels.triton.norm import layer_norm, rms_norm
from taco_kernels.triton.rotary import rotate
from taco_kernels.triton.rotary_kv import rotate_and_write_kv

bf16, fp8 = torch.bfloat16, torch.float8_e4m3fn

def empty(*shape, dtype=bf16):
    return torch.empty(shape, dtype=dtype)

def ids(count, dtype=torch.int64):
    return torch.zeros(count, dtype=dtype)

for tokens in (1, 8192):
    for width in (4096, 5120):
        rms_norm(empty(tokens, width), empty(width), 1e-5, residual=empty(tokens, width))
    layer_norm(empty(tokens, 4096), empty(4096), empty(4096), 1e-5)
    act_mul(empty(tokens, 28672))
    act_mul(empty(tokens, 28672), "swiglu_clipped", limit=7.0)
    add(empty(tokens, 4096), empty(tokens, 4096), 0.22)
    for dtype in (bf16, fp8):
        query, key, value = empty(tokens, 48, 128).split((32, 8, 8), dim=1)
        caches = empty(64, 2, 2, 16, 8, 128, dtype=dtype)
        rotate_and_write_kv(
            query, key, value, ids(tokens, torch.int32), empty(64, 128, dtype=torch.float32),
            caches[:, 1, 0], caches[:, 1, 1], ids(tokens),
        )
rotate(query, ids(tokens, torch.int32), empty(64, 64, dtype=torch.float32), offset=64)
rms_norm(empty(2, 20480), empty(20480), 1e-5, residual=empty(2, 20480))
rms_norm(query, empty(128), 1e-6, out=query)
layer_norm(query, empty(32, 128, dtype=torch.float32), None, 1e-6, out=query)
blocks = empty(8, 2**21, dtype=torch.uint8)
copy_blocks(blocks, blocks, ids(2), ids(2))
"""


@pytest.fixture(scope="module")
def launches() -> list[Compiled]:
    return compile_calls(CALLS)


def test_all_compile_without_spills(launches: list[Compiled]) -> None:
    assert len(launches) == 2 * 8 + 5
    for launch in launches:
        assert launch.spilled_bytes == 0, launch


def test_memory_is_read_and_written_16_bytes_at_a_time(launches: list[Compiled]) -> None:
    for launch in launches:
        assert launch.count("LDG.E.128") > 0, launch
        assert launch.count("STG.E.128") > 0, launch


def test_a_copy_has_eight_loads_in_flight(launches: list[Compiled]) -> None:
    copy = launches[-1]
    assert copy.kernel == "_copy_blocks_kernel"
    assert copy.count("LDG.E.128") == copy.count("STG.E.128") == 8
