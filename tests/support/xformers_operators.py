"""xformers on a CPU, for which it has no operators."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from xformers.ops.fmha import attn_bias as biases
from xformers.ops.fmha import triton_splitk
from xformers.ops.fmha.common import Inputs

from taco_worker.attention.xformers_backend import Operator


class MaterializedOperators:
    """Attention over the masks that xformers' own biases make of themselves.

    Attributes:
        used: the operators that were run, None where xformers would have chosen.
    """

    def __init__(self, can_run: Callable[[Operator], bool]) -> None:
        self._can_run = can_run
        self.used: list[Operator | None] = []
        self.inputs: list[Inputs] = []

    def supports(self, operator: Operator, inputs: Inputs) -> bool:
        return self._can_run(operator)

    def run(self, operator: Operator | None, inputs: Inputs) -> Tensor:
        self.used.append(operator)
        self.inputs.append(inputs)
        inputs.validate_inputs()
        mask = _mask(inputs)
        # What no query sees may be anything, as it may be where an operator does not read it.
        unseen = mask.isneginf().all(dim=0)
        keys, values = (
            x[0].masked_fill(unseen[:, None, None, None], 0) for x in (inputs.key, inputs.value)
        )
        scores = torch.einsum("qghd,kghd->ghqk", inputs.query[0].float(), keys.float())
        weights = (scores * inputs.scale + mask).softmax(dim=-1)
        output = torch.einsum("ghqk,kghd->qghd", weights, values.float())
        return output.to(inputs.query.dtype).unsqueeze(0)


class InterpretedOperators:
    """xformers' own kernels as far as they are written in Triton, in Triton's interpreter."""

    def supports(self, operator: Operator, inputs: Inputs) -> bool:
        return issubclass(operator, triton_splitk.FwOp)

    def run(self, operator: Operator | None, inputs: Inputs) -> Tensor:
        assert operator is not None, "only what is written in Triton can run here"
        inputs.validate_inputs()
        output: Tensor = operator.apply(inputs, needs_gradient=False)[0]
        return output


def _mask(inputs: Inputs) -> Tensor:
    """[queries, keys]: 0 where a key is seen, else minus infinity."""
    bias, num_queries, num_keys = inputs.attn_bias, inputs.query.shape[1], inputs.key.shape[1]
    assert isinstance(bias, biases.AttentionBias)
    if not isinstance(
        bias, (biases.PagedBlockDiagonalPaddedKeysMask, biases.PagedBlockDiagonalGappyKeysMask)
    ):
        return bias.materialize((num_queries, num_keys))
    # A paged mask begins as one over every row of the tables, and ends with the last page named.
    num_notional = bias.block_tables.numel() * bias.page_size
    named = bias.materialize((num_queries, num_notional))
    mask = torch.full((num_queries, num_keys), -torch.inf)
    mask[:, : named.shape[1]] = named
    return mask
