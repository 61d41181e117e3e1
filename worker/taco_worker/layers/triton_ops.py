"""A layer's operations as Triton kernels."""

from __future__ import annotations

from torch import Tensor

from taco_kernels.triton import activation, kv_write, norm, rotary


class TritonOps:
    """`LayerOps` on a GPU: one launch where torch takes three to ten."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, residual: Tensor | None) -> Tensor:
        return norm.rms_norm(x, weight, eps, residual=residual)

    def layer_norm(
        self, x: Tensor, weight: Tensor, bias: Tensor, eps: float, residual: Tensor | None
    ) -> Tensor:
        return norm.layer_norm(x, weight, bias, eps, residual=residual)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return activation.silu_mul(gate_up)

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
    ) -> Tensor:
        rotary.rotate_and_write_kv(
            query, key, value, positions, cos_sin, key_cache, value_cache, kv_slot_mapping
        )
        return query

    def write_kv(
        self,
        key: Tensor,
        value: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        kv_slot_mapping: Tensor,
    ) -> None:
        kv_write.write_kv(key, value, key_cache, value_cache, kv_slot_mapping)
