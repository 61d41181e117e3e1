"""A layer's element-wise operations, and products with codes, as Triton kernels."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from taco_kernels.packed_codes import PackedCodes, PackedExperts
from taco_kernels.triton import activation, elementwise, kv_write, norm, rotary, rotary_kv
from taco_kernels.triton.codes import experts, multiply, scaled
from taco_kernels.triton.experts import multiply as multiply_numbers
from taco_kernels.triton.experts import route
from taco_kernels.triton.recurrence.convolve import convolve
from taco_kernels.triton.recurrence.delta_rule import delta_rule
from taco_kernels.triton.recurrence.state_space import state_space


class TritonOps:
    """`LayerOps` on a GPU: one kernel launch for three to ten of torch's."""

    rms_norm = staticmethod(norm.rms_norm)
    layer_norm = staticmethod(norm.layer_norm)
    activate = staticmethod(activation.activate)
    act_mul = staticmethod(activation.act_mul)
    add = staticmethod(elementwise.add)
    scale = staticmethod(elementwise.scale)
    cap = staticmethod(elementwise.cap)
    clip = staticmethod(elementwise.clip)
    xielu = staticmethod(elementwise.xielu)
    gate = staticmethod(elementwise.gate)
    multiply = staticmethod(elementwise.multiply)
    convolve = staticmethod(convolve)
    delta_rule = staticmethod(delta_rule)
    state_space = staticmethod(state_space)
    rotate = staticmethod(rotary.rotate)
    rotate_and_write_kv = staticmethod(rotary_kv.rotate_and_write_kv)
    write_kv = staticmethod(kv_write.write_kv)
    route = staticmethod(route.route)

    def __init__(self, *, scales_fp8: bool = False) -> None:
        """`scales_fp8`: torch multiplies matrices of 8-bit floats with rounded activations."""
        self._scales_fp8 = scales_fp8

    def multiply_codes(self, x: Tensor, weight: PackedCodes, bias: Tensor | None) -> Tensor:
        if self._scales_fp8 and scaled.can_scale(x, weight):
            return scaled.multiply_scaled(x, weight, bias)
        return multiply.multiply_codes(x, weight, bias)

    def multiply_experts(
        self,
        x: Tensor,
        ids: Tensor,
        weights: Tensor,
        gate_up: Tensor | PackedExperts,
        down: Tensor | PackedExperts,
        **options: Any,
    ) -> Tensor:
        if isinstance(gate_up, PackedExperts) and isinstance(down, PackedExperts):
            return experts.multiply_coded_experts(x, ids, weights, gate_up, down, **options)
        assert isinstance(gate_up, Tensor)
        assert isinstance(down, Tensor)
        return multiply_numbers.multiply_experts(x, ids, weights, gate_up, down, **options)
