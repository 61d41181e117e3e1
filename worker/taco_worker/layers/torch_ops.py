"""The operations of a layer in torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from taco_kernels.kv_format import EIGHT_BIT_DTYPES, quantize, quantize_rows
from taco_kernels.packed_codes import PackedCodes, PackedExperts
from taco_kernels.reference import activation, elementwise, experts, norm, rotary, routing
from taco_kernels.reference.activation import ALPHA
from taco_kernels.reference.rotary import RotaryStyle
from taco_kernels.router import Router
from taco_worker.attention.kv_cache import Scale
from taco_worker.attention.step_plans import indexable
from taco_worker.layers import recurrence


class TorchOps:
    """`LayerOps` in torch, for any device; the reference of the fused kernels."""

    convolve = staticmethod(recurrence.convolve)
    delta_rule = staticmethod(recurrence.delta_rule)
    state_space = staticmethod(recurrence.state_space)

    def multiply_codes(self, x: Tensor, weight: PackedCodes, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight.values().to(x.dtype), bias)

    def rms_norm(
        self,
        x: Tensor,
        weight: Tensor | None,
        eps: float,
        *,
        bias: Tensor | None = None,
        residual: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        return _stored(norm.rms_norm(_sum(x, residual), weight, eps, bias), out)

    def layer_norm(
        self,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        *,
        residual: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        return _stored(norm.layer_norm(_sum(x, residual), weight, bias, eps), out)

    def activate(self, x: Tensor, kind: str, *, out: Tensor | None = None) -> Tensor:
        return _stored(activation.activate(x, kind), out)

    def act_mul(
        self,
        gate_up: Tensor,
        kind: str = "silu",
        *,
        alpha: float = ALPHA,
        limit: float = math.inf,
        out: Tensor | None = None,
    ) -> Tensor:
        return _stored(activation.act_mul(gate_up, kind, alpha=alpha, limit=limit), out)

    def add(self, x: Tensor, y: Tensor, factor: float = 1.0) -> None:
        x.copy_(elementwise.add(x, y, factor))

    def scale(self, x: Tensor, factor: float) -> None:
        x.copy_(elementwise.scale(x, factor))

    def cap(self, x: Tensor, limit: float) -> None:
        x.copy_(elementwise.cap(x, limit))

    def clip(self, x: Tensor, limit: float) -> None:
        x.copy_(elementwise.clip(x, limit))

    def xielu(self, x: Tensor, weight: Tensor) -> None:
        x.copy_(elementwise.xielu(x, weight))

    def multiply(self, x: Tensor, y: Tensor) -> None:
        x.copy_(elementwise.multiply(x, y))

    def gate(self, x: Tensor, gate: Tensor) -> None:
        x.copy_(elementwise.gate(x, gate))

    def rotate(
        self,
        x: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        *,
        offset: int = 0,
        style: RotaryStyle = "half",
        sections: Sequence[int] = (),
    ) -> None:
        cos, sin = rotary.gather_angles(cos_sin, positions, sections)
        x.copy_(rotary.apply_rotary(x, cos, sin, offset=offset, style=style))

    def rotate_and_write_kv(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        kv_slot_mapping: Tensor,
        *,
        offset: int = 0,
        style: RotaryStyle = "half",
        sections: Sequence[int] = (),
        key_scale: Scale = 1.0,
        value_scale: Scale = 1.0,
    ) -> None:
        cos, sin = rotary.gather_angles(cos_sin, positions, sections)
        turned = rotary.apply_rotary(key, cos, sin, offset=offset, style=style)
        self.write_kv(
            turned,
            value,
            key_cache,
            value_cache,
            kv_slot_mapping,
            key_scale=key_scale,
            value_scale=value_scale,
        )
        query.copy_(rotary.apply_rotary(query, cos, sin, offset=offset, style=style))

    def write_kv(
        self,
        key: Tensor,
        value: Tensor | None,
        key_cache: Tensor,
        value_cache: Tensor,
        kv_slot_mapping: Tensor,
        *,
        key_scale: Scale = 1.0,
        value_scale: Scale = 1.0,
    ) -> None:
        block_size = key_cache.shape[1]
        index = (kv_slot_mapping // block_size, kv_slot_mapping % block_size)
        _store(key, key_cache, key_scale, index)
        if value is not None:
            _store(value, value_cache, value_scale, index)

    def route(
        self, logits: Tensor, router: Router, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        return routing.route(logits, router, bias)

    def multiply_experts(
        self,
        x: Tensor,
        ids: Tensor,
        weights: Tensor,
        gate_up: Tensor | PackedExperts,
        down: Tensor | PackedExperts,
        *,
        activation: str,
        alpha: float,
        limit: float,
        gate_up_bias: Tensor | None,
        down_bias: Tensor | None,
    ) -> Tensor:
        out = experts.multiply_experts(
            x,
            ids,
            weights,
            gate_up,
            down,
            activation=activation,
            alpha=alpha,
            limit=limit,
            gate_up_bias=gate_up_bias,
            down_bias=down_bias,
        )
        return out.to(x.dtype)


def _store(rows: Tensor, cache: Tensor, scale: Scale, index: tuple[Tensor, Tensor]) -> None:
    if cache.dtype not in EIGHT_BIT_DTYPES:
        stored = rows.to(cache.dtype)
    elif isinstance(scale, Tensor):
        stored, scales = quantize_rows(rows, cache.dtype)
        scale.index_put_(index, scales)
    else:
        stored = quantize(rows, cache.dtype, scale)
    indexable(cache).index_put_(index, indexable(stored))


def _sum(x: Tensor, residual: Tensor | None) -> Tensor:
    return x if residual is None else residual.add_(x)


def _stored(result: Tensor, out: Tensor | None) -> Tensor:
    return result if out is None else out.copy_(result)
