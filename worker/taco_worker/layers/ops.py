"""The operations between a layer's products: on torch for every device, fused on a GPU."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from taco_kernels.reference import activation, norm, rotary


class LayerOps(Protocol):
    """Everything a layer computes that is neither a product nor attention."""

    def rms_norm(
        self, x: Tensor, weight: Tensor, eps: float, *, residual: Tensor | None = None
    ) -> Tensor:
        """The norm of x [num_tokens, hidden]; with a residual x is added to it, in place, and the
        sum is what is normed."""
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
        """The query is rotated in place; keys, rotated, and values go into the cache.

        Args:
            query, key, value: [num_tokens, heads of each, head_dim].
            cos_sin: float32 [max_positions, head_dim], cosines before sines.
            key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_dim].
            kv_slot_mapping: int64 [num_tokens]. -1, the padding of a step that is replayed, is not
                written.
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
        """The same for models without rotary positions."""
        ...


class TorchOps:
    """`LayerOps` on any device, and the reference of the others."""

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
