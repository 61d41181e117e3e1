"""The layer operations in torch, in place on parts of buffers as layers call them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from taco_kernels.reference import elementwise as reference
from taco_kernels.reference.rotary import apply_rotary, gather_angles
from taco_worker.layers.torch_ops import TorchOps


def test_heads_of_a_buffer_are_rotated_in_place() -> None:
    buffer, cos_sin = torch.randn(3, 4, 12), torch.randn(20, 8)
    before = buffer.clone()
    positions = torch.tensor([[3, 4, 5], [0, 19, 1]])
    TorchOps().rotate(
        buffer[:, 1:3], positions, cos_sin, offset=2, style="interleaved", sections=(3, 1)
    )
    cos, sin = gather_angles(cos_sin, positions, (3, 1))
    turned = apply_rotary(before[:, 1:3], cos, sin, offset=2, style="interleaved")
    assert torch.equal(buffer, torch.cat((before[:, :1], turned, before[:, 3:]), dim=1))


def test_a_part_of_the_keys_is_rotated_on_the_way_into_the_cache() -> None:
    query, key, value = torch.randn(2, 4, 8), torch.randn(2, 2, 8), torch.randn(2, 2, 8)
    caches, cos_sin = torch.zeros(2, 3, 4, 2, 8), torch.randn(20, 4)
    positions, slots = torch.tensor([7, 8]), torch.tensor([11, 0])
    cos, sin = gather_angles(cos_sin, positions)
    expected = [apply_rotary(x, cos, sin, offset=4) for x in (query, key)]
    TorchOps().rotate_and_write_kv(
        query, key, value, positions, cos_sin, caches[0], caches[1], slots, offset=4
    )
    assert torch.equal(query, expected[0])
    assert torch.equal(caches[0].flatten(0, 1)[slots], expected[1])
    assert torch.equal(caches[1].flatten(0, 1)[slots], value)


def test_columns_of_a_buffer_change_in_place() -> None:
    ops = TorchOps()
    calls: list[tuple[Callable[[Tensor], object], Callable[[Tensor], Tensor]]] = [
        (lambda x: ops.add(x, y, 0.5), lambda x: x + 0.5 * y),
        (lambda x: ops.scale(x, 3.0), lambda x: x * 3.0),
        (lambda x: ops.cap(x, 2.0), lambda x: 2.0 * torch.tanh(x / 2.0)),
        (lambda x: ops.clip(x, 0.5), lambda x: x.clamp(-0.5, 0.5)),
        (lambda x: ops.multiply(x, y), lambda x: x * y),
        (lambda x: ops.gate(x, y[:, :1]), lambda x: x * torch.sigmoid(y[:, :1])),
        (lambda x: ops.xielu(x, numbers), lambda x: reference.xielu(x, numbers)),
        (lambda x: ops.activate(x, "relu2", out=x), lambda x: x.relu().square()),
        (lambda x: ops.rms_norm(x, None, 0.0, out=x), lambda x: F.rms_norm(x, (4,), eps=0.0)),
        (
            lambda x: ops.layer_norm(x, None, y[0], 0.0, out=x),
            lambda x: F.layer_norm(x, (4,), bias=y[0], eps=0.0),
        ),
    ]
    y, numbers = torch.randn(3, 4), torch.tensor([0.7, 0.4, 0.5, -0.2])
    for change, expected in calls:
        buffer = torch.randn(3, 9)
        before = buffer.clone()
        change(buffer[:, 2:6])
        torch.testing.assert_close(buffer[:, 2:6], expected(before[:, 2:6]))
        assert torch.equal(buffer[:, :2], before[:, :2])
        assert torch.equal(buffer[:, 6:], before[:, 6:])
