"""The one decoder layer of an EAGLE head: attention over tokens and draft trees, and an MLP."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from taco_worker.layers.rotary import cos_sin_table
from taco_worker.models.step_model import Linear, StepModel
from taco_worker.speculation.heads.draft_config import DraftConfig
from taco_worker.speculation.heads.head_checkpoint import HeadTensors


@dataclass(frozen=True, slots=True)
class RMSNorm:
    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def load_norm(name: str, tensors: HeadTensors, config: DraftConfig, target: StepModel) -> RMSNorm:
    weight = tensors.take(f"{name}.weight", config.hidden_size)
    weight = weight.to(target.device, target.hidden_dtype, copy=True)
    return RMSNorm(weight, config.norm_eps)


class DraftLayer:
    """Llama's layer without the norms before its attention, in which the versions of EAGLE differ.

    The caller stores keys and values.
    """

    def __init__(
        self,
        tensors: HeadTensors,
        prefix: str,
        config: DraftConfig,
        target: StepModel,
        *,
        input_size: int,
        num_positions: int,
    ) -> None:
        """
        Args:
            prefix: of the layer's tensor names in the checkpoint.
            input_size: input width of the attention's products.

        Raises:
            ConfigurationError: tensors are missing or do not fit.
        """
        self.config = config
        size, inner_size = config.hidden_size, config.intermediate_size
        query_size, kv_size = config.heads.query_size, config.heads.kv_size

        def linear(sizes: dict[str, int], input_size: int) -> Linear:
            """Fuse products of one input; their outputs are side by side."""
            named = {f"{prefix}{name}": n for name, n in sizes.items()}
            weights = [tensors.take(f"{name}.weight", n, input_size) for name, n in named.items()]
            biases = [tensors.take_if_there(f"{name}.bias", n) for name, n in named.items()]
            given = [bias for bias in biases if bias is not None]
            return target.linear(torch.cat(weights), torch.cat(given) if given else None)

        self._queries = linear({"self_attn.q_proj": query_size}, input_size)
        self._keys_values = linear(
            {"self_attn.k_proj": kv_size, "self_attn.v_proj": kv_size}, input_size
        )
        self._out = linear({"self_attn.o_proj": size}, query_size)
        self._gate_up = linear({"mlp.gate_proj": inner_size, "mlp.up_proj": inner_size}, size)
        self._down = linear({"mlp.down_proj": size}, inner_size)
        self._mlp_norm = load_norm(f"{prefix}post_attention_layernorm", tensors, config, target)
        head_dim = config.heads.head_dim
        table = cos_sin_table(config.rotary, head_dim, num_positions, target.device)
        self._cos_sin = table.to(target.hidden_dtype)

    def queries(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [num_rows, input_size] to [num_rows, num_heads, head_dim]."""
        return self._rotated(self._queries(x), positions)

    def keys_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """x [num_rows, input_size] to [num_rows, num_kv_heads, head_dim] each."""
        keys, values = self._keys_values(x).chunk(2, dim=-1)
        heads = (-1, self.config.heads.num_kv_heads, self.config.heads.head_dim)
        return self._rotated(keys, positions), values.reshape(heads)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Attention with an explicit mask.

        Args:
            queries: [num_seqs, num_queries, num_heads, head_dim].
            keys, values: [num_seqs, num_keys, num_kv_heads, head_dim].
            mask: bool [num_seqs, num_queries, num_keys], true where a query sees a key.

        Returns:
            [num_seqs * num_queries, num_heads * head_dim].
        """
        attended = F.scaled_dot_product_attention(
            queries.transpose(1, 2),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=mask[:, None],
            scale=self.config.heads.head_dim**-0.5,
            enable_gqa=self.config.heads.num_kv_heads != self.config.heads.num_heads,
        )
        return attended.transpose(1, 2).flatten(2).flatten(0, 1)

    def finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        """The layer's output, [num_rows, hidden_size]."""
        x = residual + self._out(attended)
        gate, up = self._gate_up(self._mlp_norm(x)).chunk(2, dim=-1)
        return x + self._down(F.silu(gate) * up)

    def _rotated(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Rotate each pair (i, i + head_dim / 2) by its position's angle."""
        heads = rows.unflatten(-1, (-1, self.config.heads.head_dim))
        cosines, sines = self._cos_sin[positions][:, None].chunk(2, dim=-1)
        first, second = heads.chunk(2, dim=-1)
        return torch.cat(
            [first * cosines - second * sines, second * cosines + first * sines], dim=-1
        )
