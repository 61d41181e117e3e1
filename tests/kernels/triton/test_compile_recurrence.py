"""Kernels of recurrences compiled for Hopper: states stay in registers, loads run ahead."""

from __future__ import annotations

import pytest

from support.triton_compile import Compiled, compile_calls

pytestmark = pytest.mark.slow

# Shapes of Qwen3-Next, Kimi Linear and Mamba 2, a key that is no power of two, and a wide one.
CALLS = """
from math import prod
import torch
from taco_kernels.triton.recurrence.convolve import convolve
from taco_kernels.triton.recurrence.delta_rule import delta_rule
from taco_kernels.triton.recurrence.state_space import state_space

class States:
    def __init__(self, max_query_len):
        self.query_start = torch.zeros(3, dtype=torch.int32)
        column = torch.zeros(2, dtype=torch.int32)
        self.rows = self.sources = self.saved_tokens = self.saved_rows = column
        self.query_lens_host = [max_query_len] * 2

def empty(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype)

def memory(*shape):
    rows = empty(2, prod(shape) + 64, dtype=torch.float32)
    return rows[:, : prod(shape)].unflatten(1, shape)

def heads(num_key_heads, key_dim, num_heads, value_dim):
    sizes = [num_key_heads * key_dim] * 2 + [num_heads * value_dim]
    parts = empty(8, sum(sizes)).split(sizes, dim=1)
    dims = (key_dim, key_dim, value_dim)
    return [part.unflatten(1, (-1, dim)) for part, dim in zip(parts, dims)]

for key_dim, by_column in ((128, ()), (128, (128,)), (96, ()), (256, ())):
    delta_rule(
        *heads(16, key_dim, 32, 128), empty(8, 32, *by_column), empty(8, 32),
        empty(32, dtype=torch.float32), empty(32, *by_column, dtype=torch.float32),
        memory(32, key_dim, 128), States(4), beta_scale=1.0,
    )
state_space(
    *heads(1, 128, 80, 64), empty(8, 80), empty(80), empty(80), empty(80), memory(80, 128, 64),
    States(4), min_step=0.0, max_step=float("inf"),
)
for max_query_len in (1, 4, 8192):
    convolve(
        empty(8, 8256)[:, :8192], empty(8192, 4), empty(8192), memory(3, 8192),
        States(max_query_len), activation="silu",
    )
"""


@pytest.fixture(scope="module")
def launches() -> list[Compiled]:
    return compile_calls(CALLS)


def test_all_compile_without_spills(launches: list[Compiled]) -> None:
    assert len(launches) == 5 + 3
    for launch in launches:
        assert launch.spilled_bytes == 0, launch


def test_states_are_read_and_written_16_bytes_at_a_time(launches: list[Compiled]) -> None:
    for launch in launches:
        assert launch.count("LDG.E.128") > 0, launch
        assert launch.count("STG.E.128") > 0, launch


def test_the_next_tokens_are_loaded_while_one_is_computed(launches: list[Compiled]) -> None:
    for launch in launches[:5]:
        assert launch.num_warps == 1
        assert launch.count("LDGSTS") > 0, launch
