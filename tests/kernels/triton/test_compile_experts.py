"""The kernels of a mixture of experts compiled for Hopper: tensor cores, no register spills."""

from __future__ import annotations

import pytest

from support.triton_compile import Compiled, compile_calls

pytestmark = pytest.mark.slow

# The routers of OLMoE, ERNIE 4.5, DeepSeek-V3 and PhiMoE; OLMoE's experts at one token and at a
# prefill's.
CALLS = """
import torch
from taco_kernels.router import Router
from taco_kernels.triton.experts.multiply import multiply_experts
from taco_kernels.triton.experts.route import route

def empty(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype)

route(empty(5, 64), Router("softmax", 64, 8))
route(empty(5, 64), Router("softmax", 64, 6, True), empty(64, dtype=torch.float32))
route(
    empty(5, 256), Router("sigmoid", 256, 8, True, 2.5, 8, 4, "sum_of_two"),
    empty(256, dtype=torch.float32),
)
route(empty(5, 16), Router("sparsemixer", 16, 2, jitter=0.01))
gate_up, down = empty(64, 2048, 2048), empty(64, 2048, 1024)
for rows in (1, 8192):
    ids, weights = empty(rows, 8, dtype=torch.int32), empty(rows, 8, dtype=torch.float32)
    multiply_experts(empty(rows, 2048), ids, weights, gate_up, down)
"""


@pytest.fixture(scope="module")
def launches() -> list[Compiled]:
    return compile_calls(CALLS)


def test_all_compile_without_spills(launches: list[Compiled]) -> None:
    assert len(launches) == 4 + 2 * 5
    for launch in launches:
        assert launch.spilled_bytes == 0, launch


def test_products_use_tensor_cores(launches: list[Compiled]) -> None:
    products = [one for one in launches if one.kernel in ("_gate_up_kernel", "_down_kernel")]
    assert len(products) == 4
    for launch in products:
        assert launch.count("HGMMA") + launch.count("HMMA") > 0, launch
