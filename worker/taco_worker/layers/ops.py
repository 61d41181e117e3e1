"""Element-wise operations of a layer: norms, activation, rotary positions and KV writes."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from taco_kernels.reference import activation, norm, rotary


class LayerOps(Protocol):
    """All operations of a layer except matrix products and attention."""

    def rms_norm(
        self, x: Tensor, weight: Tensor, eps: float, *, residual: Tensor | None = None
    ) -> Tensor:
        """The norm of x [num_tokens, hidden]. With a residual, x is added to it in place and the
        sum is normed."""
        ...

    def layer_norm(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        *,
        residual: Tensor | None = None,
    ) -> Tensor:
        """Likewise."""
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up: [num_tokens, 2 * size] to [num_tokens, size]."""
        ...

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
    ) -> None:
        """Rotate the query in place; write rotated keys and values into the cache.

        Args:
            query, key, value: [num_tokens, heads of each, head_dim].
            cos_sin: float32 [max_positions, head_dim], cosines before sines.
            key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_dim].
            kv_slot_mapping: int64 [num_tokens]. -1 marks padding of a CUDA graph replay, which is
                not written.
        """
        ...

    def write_kv(
        self,
        key: Tensor,
        value: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        kv_slot_mapping: Tensor,
    ) -> None:
        """Write keys and values into the cache, for models without rotary positions."""
        ...


class TorchOps:
    """`LayerOps` in torch, for any device; the reference of the fused kernels."""

    def rms_norm(
        self, x: Tensor, weight: Tensor, eps: float, *, residual: Tensor | None = None
    ) -> Tensor:
        return norm.rms_norm(_sum(x, residual), weight, eps)

    def layer_norm(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        *,
        residual: Tensor | None = None,
    ) -> Tensor:
        return norm.layer_norm(_sum(x, residual), weight, bias, eps)

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
    ) -> None:
        cos, sin = cos_sin[positions].chunk(2, dim=-1)
        self.write_kv(
            rotary.apply_rotary(key, cos, sin), value, key_cache, value_cache, kv_slot_mapping
        )
        query.copy_(rotary.apply_rotary(query, cos, sin))

    def write_kv(
        self,
        key: Tensor,
        value: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        kv_slot_mapping: Tensor,
    ) -> None:
        block_size = key_cache.shape[1]
        index = (kv_slot_mapping // block_size, kv_slot_mapping % block_size)
        key_cache.index_put_(index, key.to(key_cache.dtype))
        value_cache.index_put_(index, value.to(value_cache.dtype))


def _sum(x: Tensor, residual: Tensor | None) -> Tensor:
    return x if residual is None else residual.add_(x)
