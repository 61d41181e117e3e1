"""The plans of Medusa's heads: residual blocks, x + silu(W x + b), and an LM head.

Cai et al. 2024, "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads".
"""

from __future__ import annotations

import re
from collections.abc import Collection

from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.plan.builder import Module, PlanBuilder
from taco_worker.models.plan.model_plan import ModelPlan, TensorNames
from taco_worker.models.plan.ops.activation import Activation
from taco_worker.models.plan.ops.input import Input

PREFIX = "medusa_head."
_HEAD_NUMBER = re.compile(r"(\d+)\.")


def is_medusa(fields: ConfigFields) -> bool:
    return "medusa_num_heads" in fields.values or fields.get("model_type") == "medusa"


def medusa_plans(
    fields: ConfigFields, tensor_names: Collection[str], *, hidden_size: int, vocab_size: int
) -> list[ModelPlan]:
    """A plan for each head: the target's last hidden state to the head's, and its logits.

    Tensors are named `0.0.linear.weight`, or the same with the prefix `medusa_head.` among the base
    model's tensors. They determine the number of heads: published configs may name fewer. With
    `original_lm_head`, heads use the target's LM head.

    Args:
        tensor_names: of the checkpoint.
        hidden_size, vocab_size: the target's.

    Raises:
        ValueError: a field is invalid.
    """
    num_layers = fields.get("medusa_num_layers", default=1)
    if not isinstance(num_layers, int) or num_layers < 0:
        raise ValueError(f"medusa_num_layers must be a number, not {num_layers!r}")
    names = TensorNames()
    if any(name.startswith(PREFIX) for name in tensor_names):
        names = TensorNames(((PREFIX, ""),), (rf"^(?!{re.escape(PREFIX)})",))
    own = [name.removeprefix(PREFIX) for name in tensor_names if names.canonical(name)]
    numbers = [int(match[1]) for name in own if (match := _HEAD_NUMBER.match(name))]
    has_head = not fields.get("original_lm_head", default=False)
    plans = []
    for number in range(max(numbers, default=0) + 1):
        b = PlanBuilder(hidden_size=hidden_size, vocab_size=vocab_size)
        b.add(Input(b.stream))
        for layer in range(num_layers):
            with b.layer():
                module = Module(f"{number}.{layer}.linear", hidden_size)
                y = b.linear(b.stream, "block", [module], bias=True)
                b.add(Activation(y, b.buffer("inner", hidden_size), "silu", False))
                b.residual(b.buffer("inner", hidden_size))
        if has_head:
            b.head(f"{number}.{num_layers}")
        plans.append(b.build("Medusa", 1, names))
    return plans
