"""Convolutions and linear recurrences of a plan as torch modules."""

from __future__ import annotations

from torch import Tensor

from taco_worker.backends.torch.op_module import OpModule, Parameters
from taco_worker.backends.torch.step_buffers import StepBuffers, StepTokens
from taco_worker.layers.ops import LayerOps
from taco_worker.models.plan.ops.recurrence import Convolve, DeltaRule, StateSpace


class ConvolveModule(OpModule):
    def __init__(self, op: Convolve, parameters: Parameters, ops: LayerOps) -> None:
        super().__init__()
        self.op, self.ops = op, ops
        self.weight = parameters[op.weight]
        self.bias = None if op.bias is None else parameters[op.bias]

    def forward(self, step: StepBuffers, tokens: StepTokens | None) -> None:
        assert tokens is not None
        op = self.op
        out = self.ops.convolve(
            step.read(op.x),
            self.weight,
            self.bias,
            *tokens.entry_states(op.entry),
            activation=op.activation,
        )
        if op.out == op.x:  # these may be some columns of their buffer
            step.read(op.x).copy_(out)
        else:
            step.write(op.out, out)


class DeltaRuleModule(OpModule):
    def __init__(self, op: DeltaRule, parameters: Parameters, ops: LayerOps) -> None:
        super().__init__()
        self.op, self.ops = op, ops
        self.rates, self.decay_bias = parameters[op.rates], parameters[op.decay_bias]

    def forward(self, step: StepBuffers, tokens: StepTokens | None) -> None:
        assert tokens is not None
        op = self.op
        decay = step.read(op.decay)
        decay_bias: Tensor = self.decay_bias
        if op.decay.size != op.num_heads:
            decay = decay.unflatten(-1, (op.num_heads, op.key_dim))
            decay_bias = decay_bias.view(op.num_heads, op.key_dim)
        out = self.ops.delta_rule(
            step.heads(op.query, op.key_dim),
            step.heads(op.key, op.key_dim),
            step.heads(op.value, op.value_dim),
            decay,
            step.read(op.beta),
            self.rates,
            decay_bias,
            *tokens.entry_states(op.entry),
            beta_scale=op.beta_scale,
        )
        step.write(op.out, out.flatten(1))


class StateSpaceModule(OpModule):
    def __init__(self, op: StateSpace, parameters: Parameters, ops: LayerOps) -> None:
        super().__init__()
        self.op, self.ops = op, ops
        self.rates, self.step_bias = parameters[op.rates], parameters[op.step_bias]
        self.skip = parameters[op.skip]

    def forward(self, step: StepBuffers, tokens: StepTokens | None) -> None:
        assert tokens is not None
        op = self.op
        out = self.ops.state_space(
            step.heads(op.query, op.key_dim),
            step.heads(op.key, op.key_dim),
            step.heads(op.value, op.value_dim),
            step.read(op.step),
            self.rates,
            self.step_bias,
            self.skip,
            *tokens.entry_states(op.entry),
            min_step=op.min_step,
            max_step=op.max_step,
        )
        step.write(op.out, out.flatten(1))
