"""The interface of a layer's operations: norms, activations, positions, KV writes, recurrences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from taco_kernels.packed_codes import PackedCodes, PackedExperts
from taco_kernels.reference.activation import ALPHA
from taco_kernels.reference.rotary import RotaryStyle
from taco_kernels.router import Router
from taco_worker.attention.kv_cache import Scale
from taco_worker.layers.sequence_states import SequenceStates


class LayerOps(Protocol):
    """All operations of a layer except products with numbers, and attention."""

    def multiply_codes(self, x: Tensor, weight: PackedCodes, bias: Tensor | None) -> Tensor:
        """x W^T + b, [num_tokens, n] in x's dtype.

        Args:
            x: [num_tokens, k].
            weight: [n, k]; bias: [n].
        """
        ...

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
        """The norm of x [num_tokens, size], or [num_tokens, num_heads, size] head by head.

        Args:
            weight, bias: [size], or [num_heads, size]; in x's dtype or float32; None: 1 and 0.
            residual: as x; x is added to it in place and the sum is normed.
            out: as x; may be x itself.

        Returns:
            `out`, or a new tensor.
        """
        ...

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
        """Likewise."""
        ...

    def activate(self, x: Tensor, kind: str, *, out: Tensor | None = None) -> Tensor:
        """The activation of each number of x [num_tokens, size]; `out` may be x itself."""
        ...

    def act_mul(
        self,
        gate_up: Tensor,
        kind: str = "silu",
        *,
        alpha: float = ALPHA,
        limit: float = math.inf,
        out: Tensor | None = None,
    ) -> Tensor:
        """act(gate) * up: [num_tokens, 2 * size], the gate first, to [num_tokens, size].

        `taco_kernels.reference.activation` has the kinds, alpha and limit.
        """
        ...

    def add(self, x: Tensor, y: Tensor, factor: float = 1.0) -> None:
        """x += factor * y; this and the following change x [num_tokens, size] in place."""
        ...

    def scale(self, x: Tensor, factor: float) -> None:
        """x *= factor"""
        ...

    def cap(self, x: Tensor, limit: float) -> None:
        """x = limit * tanh(x / limit)"""
        ...

    def clip(self, x: Tensor, limit: float) -> None:
        """x within [-limit, limit]"""
        ...

    def xielu(self, x: Tensor, weight: Tensor) -> None:
        """x = xIELU(x); weight: float32 [4], as `taco_kernels.reference.elementwise.xielu`."""
        ...

    def gate(self, x: Tensor, gate: Tensor) -> None:
        """x *= sigmoid(gate); gate [num_tokens, size] or [num_tokens, 1]."""
        ...

    def multiply(self, x: Tensor, y: Tensor) -> None:
        """x *= y"""
        ...

    def convolve(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        memory: Tensor,
        states: SequenceStates,
        *,
        activation: str | None,
    ) -> Tensor:
        """A causal convolution of each column over its sequence, [num_tokens, columns].

        This and the two recurrences read the states of sequences from `memory`, float32 [num_rows,
        *shape of a state], and store them there. `taco_kernels.reference.recurrence` has the
        equations, and the shapes besides.
        """
        ...

    def delta_rule(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        decay: Tensor,
        beta: Tensor,
        rates: Tensor,
        decay_bias: Tensor,
        memory: Tensor,
        states: SequenceStates,
        *,
        beta_scale: float,
    ) -> Tensor:
        """The gated delta rule over each sequence, [num_tokens, num_heads, value_dim]."""
        ...

    def state_space(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        step: Tensor,
        rates: Tensor,
        step_bias: Tensor,
        skip: Tensor,
        memory: Tensor,
        states: SequenceStates,
        *,
        min_step: float,
        max_step: float,
    ) -> Tensor:
        """The recurrence of Mamba 2 over each sequence, [num_tokens, num_heads, value_dim]."""
        ...

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
        """Rotate a part of each head of x [num_tokens, num_heads, head_dim] in place.

        Args:
            positions: integers [num_tokens], or [axes, num_tokens] with sections.
            cos_sin: float32 [max_positions, rotary_dim], cosines before sines.
            offset: first rotated number of a head.
            style: pairs are (i, i + rotary_dim / 2), or (2i, 2i + 1) if interleaved.
            sections: pairs that each axis of the positions turns (M-RoPE).
        """
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
        *,
        offset: int = 0,
        style: RotaryStyle = "half",
        sections: Sequence[int] = (),
        key_scale: Scale = 1.0,
        value_scale: Scale = 1.0,
    ) -> None:
        """Rotate the query in place; write rotated keys and values into the cache.

        Args:
            query, key, value: [num_tokens, heads of each, head_dim].
            positions, cos_sin, offset, style, sections: as in `rotate`.
            key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_dim].
            kv_slot_mapping: int64 [num_tokens]. -1 marks padding of a CUDA graph replay, which is
                not written.
            key_scale, value_scale: of a cache of 8 bits. A number: the cache holds the quotients;
                a tensor [num_blocks, block_size, num_kv_heads]: it gets a scale for each head, with
                which the head's greatest number becomes the dtype's.
        """
        ...

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
        """Write keys and values into the cache; without values for a latent entry.

        Scales are those of `rotate_and_write_kv`.
        """
        ...

    def route(
        self, logits: Tensor, router: Router, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Choose the experts of each token.

        Args:
            logits: [num_tokens, num_experts].
            bias: float32 [num_experts], added to the scores for the choice.

        Returns:
            Expert ids, int32 [num_tokens, top_k], best first, and their weights, float32.
        """
        ...

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
        """The weighted sum of the chosen experts' outputs, [num_tokens, out_size] in x's dtype.

        Args:
            x: [num_tokens, hidden_size].
            ids, weights: of `route`.
            gate_up: [num_experts, 2 * intermediate_size, hidden_size], the gate's rows first.
            down: [num_experts, out_size, intermediate_size], codes if gate_up is.
            activation, alpha, limit: as in `taco_kernels.reference.activation.act_mul`.
            gate_up_bias, down_bias: [num_experts, rows of the matrix].
        """
        ...
