"""The ops of a plan as torch modules, which own their parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from taco_kernels.attention_options import AttentionOptions
from taco_kernels.kv_entry import KVEntry
from taco_kernels.packed_codes import PackedExperts
from taco_worker.attention.backend import AttentionBackend, require_support
from taco_worker.backends.torch.adapters import AdapterWeights
from taco_worker.backends.torch.coded_weight import CodedWeight
from taco_worker.backends.torch.fusion import AddNorm, RotateAndWriteKV, TorchOp
from taco_worker.backends.torch.op_module import OpModule, Parameters
from taco_worker.backends.torch.recurrence_modules import (
    ConvolveModule,
    DeltaRuleModule,
    StateSpaceModule,
)
from taco_worker.backends.torch.step_buffers import StepBuffers, StepTokens
from taco_worker.layers.attention import attention_options
from taco_worker.layers.linear import Linear
from taco_worker.layers.ops import LayerOps
from taco_worker.models.plan.ops.activation import Activation
from taco_worker.models.plan.ops.attend import Attend, WriteKV
from taco_worker.models.plan.ops.elementwise import Add, Cap, Clip, Gate, Multiply, Scale, Xielu
from taco_worker.models.plan.ops.embed import Embed
from taco_worker.models.plan.ops.experts import Experts, Route
from taco_worker.models.plan.ops.input import Input
from taco_worker.models.plan.ops.linear import HeadCopy, HeadLinear
from taco_worker.models.plan.ops.linear import Linear as LinearOp
from taco_worker.models.plan.ops.norm import Norm
from taco_worker.models.plan.ops.recurrence import Convolve, DeltaRule, StateSpace
from taco_worker.models.plan.ops.rope import Rope

CodedWeights = Mapping[str, CodedWeight]


class EmbedModule(OpModule):
    def __init__(self, op: Embed, parameters: Parameters) -> None:
        super().__init__()
        self.op = op
        self.weight = parameters[op.table]

    def forward(self, step: StepBuffers, tokens: StepTokens | None) -> None:
        assert tokens is not None
        if self.op.index == "positions":
            rows = F.embedding(tokens.positions + self.op.offset, self.weight)
        else:
            rows = F.embedding(tokens.token_ids, self.weight)
            if tokens.embeddings is not None:
                rows.index_copy_(0, *tokens.embeddings)
        step.write(self.op.out, rows)


class InputModule(OpModule):
    def __init__(self, op: Input) -> None:
        super().__init__()
        self.op = op

    def forward(self, step: StepBuffers, tokens: StepTokens | None) -> None:
        assert tokens is not None
        assert tokens.columns is not None
        step.write(self.op.out, tokens.columns.clone())  # later ops may change it


class LinearModule(OpModule):
    def __init__(
        self,
        op: LinearOp,
        parameters: Parameters,
        coded: CodedWeights,
        ops: LayerOps,
        adapters: AdapterWeights | None,
    ) -> None:
        super().__init__()
        self.op = op
        self.adapters = adapters
        bias = None if op.bias is None else parameters[op.bias]
        self.linear: nn.Module
        if op.weight in coded:
            self.linear = CodedLinear(coded[op.weight], bias, ops)
        else:
            self.linear = Linear(parameters[op.weight], bias)

    def forward(self, step: StepBuffers, tokens: StepTokens | None) -> None:
        x = step.read(self.op.x)
        out = self.linear(x)
        if self.adapters is not None and tokens is not None and tokens.adapter_ids is not None:
            out = out + self.adapters(x, tokens.adapter_ids)
        step.write(self.op.out, out)


class HeadLinearModule(OpModule):
    def __init__(self, op: HeadLinear, parameters: Parameters) -> None:
        super().__init__()
        self.op = op
        self.weight = parameters[op.weight]

    def forward(self, step: StepBuffers, tokens: StepTokens | None) -> None:
        op = self.op
        x = step.read_heads(op.x, op.num_heads, op.x_stride, op.in_size)
        product = torch.matmul(x.transpose(0, 1), self.weight.mT)
        step.write_heads(op.out, op.num_heads, op.out_stride, product.transpose(0, 1))


class HeadCopyModule(OpModule):
    def __init__(self, op: HeadCopy) -> None:
        super().__init__()
        self.op = op

    def forward(self, step: StepBuffers, tokens: StepTokens | None) -> None:
        op = self.op
        x = step.read_heads(op.x, op.num_heads, op.x_stride, op.size)
        step.write_heads(op.out, op.num_heads, op.out_stride, x)


class NormModule(OpModule):
    """A norm, after the addition of `AddNorm.y` to its input if there is one."""

    def __init__(self, op: Norm | AddNorm, parameters: Parameters, ops: LayerOps) -> None:
        super().__init__()
        self.op = op.norm if isinstance(op, AddNorm) else op
        self.y = op.y if isinstance(op, AddNorm) else None
        self.ops = ops
        self.weight = None if self.op.weight is None else parameters[self.op.weight]
        self.bias = None if self.op.bias is None else parameters[self.op.bias]

    def forward(self, step: StepBuffers, tokens: StepTokens | None) -> None:
        x, residual = step.read(self.op.x), None
        if self.y is not None:
            x, residual = step.read(self.y), x
        if self.op.out != self.op.x:
            step.write(self.op.out, self._norm(self._groups(x), residual).flatten(1))
            return
        # In place, since these may be some columns of their buffer.
        self._norm(self._groups(x), residual, self._groups(step.read(self.op.out)))

    def _groups(self, x: Tensor) -> Tensor:
        if self.op.group is None or self.op.group == self.op.x.size:
            return x
        return x.unflatten(-1, (-1, self.op.group))

    def _norm(self, x: Tensor, residual: Tensor | None, out: Tensor | None = None) -> Tensor:
        weight: Tensor | None = self.weight
        bias: Tensor | None = self.bias
        if not self.op.shares_weight:
            weight = None if weight is None else weight.view(x.shape[1:])
            bias = None if bias is None else bias.view(x.shape[1:])
        if self.op.kind == "rms":
            return self.ops.rms_norm(x, weight, self.op.eps, bias=bias, residual=residual, out=out)
        return self.ops.layer_norm(x, weight, bias, self.op.eps, residual=residual, out=out)


class RopeModule(OpModule):
    def __init__(self, op: Rope, ops: LayerOps) -> None:
        super().__init__()
        self.op, self.ops = op, ops

    def forward(self, step: StepBuffers, tokens: StepTokens | None) -> None:
        assert tokens is not None
        op = self.op
        heads, angles = step.heads(op.x, op.head_dim), tokens.angles(op.table)
        self.ops.rotate(
            heads,
            angles.positions,
            angles.cos_sin,
            offset=op.offset,
            style=op.style,
            sections=angles.sections,
        )


class WriteKVModule(OpModule):
    def __init__(self, op: WriteKV, entry: KVEntry, ops: LayerOps) -> None:
        super().__init__()
        self.entry, self.ops = entry, ops
        self.index, self.key, self.value = op.entry, op.key, op.value

    def forward(self, step: StepBuffers, tokens: StepTokens | None) -> None:
        assert tokens is not None
        key = step.heads(self.key, self.entry.key_dim)
        value = None if self.value is None else step.heads(self.value, self.entry.value_dim)
        cache = tokens.kv_cache.key(self.index), tokens.kv_cache.value(self.index)
        key_scale, value_scale = tokens.kv_cache.scales(self.index)
        self.ops.write_kv(
            key,
            value,
            *cache,
            tokens.metadata.kv_slot_mapping,
            key_scale=key_scale,
            value_scale=value_scale,
        )


class RotateAndWriteKVModule(OpModule):
    def __init__(self, op: RotateAndWriteKV, entry: KVEntry, ops: LayerOps) -> None:
        super().__init__()
        assert op.write.value is not None
        self.query, self.key, self.value = op.query, op.key, op.write.value
        self.index, self.entry, self.ops = op.write.entry, entry, ops

    def forward(self, step: StepBuffers, tokens: StepTokens | None) -> None:
        assert tokens is not None
        rope = self.query
        angles = tokens.angles(rope.table)
        key_scale, value_scale = tokens.kv_cache.scales(self.index)
        self.ops.rotate_and_write_kv(
            step.heads(rope.x, rope.head_dim),
            step.heads(self.key.x, rope.head_dim),
            step.heads(self.value, self.entry.value_dim),
            angles.positions,
            angles.cos_sin,
            tokens.kv_cache.key(self.index),
            tokens.kv_cache.value(self.index),
            tokens.metadata.kv_slot_mapping,
            offset=rope.offset,
            style=rope.style,
            sections=angles.sections,
            key_scale=key_scale,
            value_scale=value_scale,
        )


class AttendModule(OpModule):
    def __init__(
        self, op: Attend, entry: KVEntry, parameters: Parameters, backend: AttentionBackend
    ) -> None:
        """Raises ValueError if the back end lacks an option."""
        super().__init__()
        self.op, self.entry, self.backend = op, entry, backend
        self.sinks = None if op.sinks is None else parameters[op.sinks]
        self._options: AttentionOptions | None = None
        require_support(backend, attention_options(op, parameters), entry)

    def forward(self, step: StepBuffers, tokens: StepTokens | None) -> None:
        assert tokens is not None
        if self._options is None:  # the parameters are loaded by now
            sinks = {} if self.sinks is None else {self.op.sinks or "": self.sinks}
            self._options = attention_options(self.op, sinks, tokens.positions.device)
        query = step.heads(self.op.query, self.entry.key_dim)
        out = self.backend.attend(
            query, tokens.kv_cache, self.op.entry, tokens.metadata, self._options
        )
        step.write(self.op.out, out.flatten(1))


class ActivationModule(OpModule):
    def __init__(self, op: Activation, ops: LayerOps) -> None:
        super().__init__()
        self.op, self.ops = op, ops

    def forward(self, step: StepBuffers, tokens: StepTokens | None) -> None:
        x = step.read(self.op.x)
        if not self.op.gated:
            step.write(self.op.out, self.ops.activate(x, self.op.kind))
            return
        limit = math.inf if self.op.limit is None else self.op.limit
        out = self.ops.act_mul(x, self.op.kind, alpha=self.op.alpha, limit=limit)
        step.write(self.op.out, out)


class RouteModule(OpModule):
    def __init__(self, op: Route, parameters: Parameters, ops: LayerOps) -> None:
        super().__init__()
        self.op, self.ops = op, ops
        self.bias = None if op.bias is None else parameters[op.bias]

    def forward(self, step: StepBuffers, tokens: StepTokens | None) -> None:
        ids, weights = self.ops.route(step.read(self.op.logits), self.op.router, self.bias)
        step.write(self.op.ids, ids)
        step.write(self.op.weights, weights)


class CodedLinear(nn.Module):
    """y = x W^T + b over a weight of codes."""

    def __init__(self, weight: CodedWeight, bias: nn.Parameter | None, ops: LayerOps) -> None:
        super().__init__()
        self.weight, self.bias, self.ops = weight, bias, ops

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.weight(x, self.bias, self.ops.multiply_codes)
        return out


class ExpertsModule(OpModule):
    def __init__(
        self, op: Experts, parameters: Parameters, coded: CodedWeights, ops: LayerOps
    ) -> None:
        super().__init__()
        self.op, self.ops = op, ops
        both: Mapping[str, nn.Parameter | CodedWeight] = {**parameters, **coded}
        self.gate_up, self.down = both[op.gate_up], both[op.down]
        self.gate_up_bias = None if op.gate_up_bias is None else parameters[op.gate_up_bias]
        self.down_bias = None if op.down_bias is None else parameters[op.down_bias]

    def forward(self, step: StepBuffers, tokens: StepTokens | None) -> None:
        op = self.op
        out = self.ops.multiply_experts(
            step.read(op.x),
            step.read(op.ids),
            step.read(op.weights),
            *self._matrices(),
            activation=op.activation,
            alpha=op.alpha,
            limit=math.inf if op.limit is None else op.limit,
            gate_up_bias=self.gate_up_bias,
            down_bias=self.down_bias,
        )
        step.write(op.out, out)

    def finish_loading(self) -> None:
        """Dequantize both matrices unless the codes of each are one matrix."""
        coded = [one for one in (self.gate_up, self.down) if isinstance(one, CodedWeight)]
        if not all(isinstance(one.experts, PackedExperts) for one in coded):
            for one in coded:
                one.dequantize()

    def _matrices(self) -> tuple[Tensor, Tensor] | tuple[PackedExperts, PackedExperts]:
        gate_up, down = (
            one.experts if isinstance(one, CodedWeight) else one
            for one in (self.gate_up, self.down)
        )
        if isinstance(gate_up, PackedExperts) and isinstance(down, PackedExperts):
            return gate_up, down
        assert isinstance(gate_up, Tensor)
        assert isinstance(down, Tensor)
        return gate_up, down


class ColumnsModule(OpModule):
    """Changes columns in place."""

    def __init__(self, op: Add | Scale | Cap | Clip | Gate | Multiply, ops: LayerOps) -> None:
        super().__init__()
        self.op, self.ops = op, ops

    def forward(self, step: StepBuffers, tokens: StepTokens | None) -> None:
        x = step.read(self.op.x)
        match self.op:
            case Add(y=y, scale=scale):
                self.ops.add(x, step.read(y), scale)
            case Scale(factor=factor):
                self.ops.scale(x, factor)
            case Cap(cap=cap):
                self.ops.cap(x, cap)
            case Clip(limit=limit):
                self.ops.clip(x, limit)
            case Gate(gate=gate):
                self.ops.gate(x, step.read(gate))
            case Multiply(y=y):
                self.ops.multiply(x, step.read(y))


class XieluModule(OpModule):
    def __init__(self, op: Xielu, parameters: Parameters, ops: LayerOps) -> None:
        super().__init__()
        self.op, self.ops = op, ops
        self.weight = parameters[op.weight]

    def forward(self, step: StepBuffers, tokens: StepTokens | None) -> None:
        self.ops.xielu(step.read(self.op.x), self.weight)


def make_module(
    op: TorchOp,
    parameters: Parameters,
    coded: CodedWeights,
    entries: tuple[KVEntry, ...],
    ops: LayerOps,
    backend: AttentionBackend,
    adapters: Mapping[str, AdapterWeights],
) -> OpModule:
    """The module of an op.

    Args:
        adapters: of linear layers, by the parameter of their weight.

    Raises:
        ValueError: torch has no such op.
    """
    match op:
        case Embed():
            return EmbedModule(op, parameters)
        case Input():
            return InputModule(op)
        case LinearOp():
            own = adapters[op.weight] if op.is_adapted else None
            return LinearModule(op, parameters, coded, ops, own)
        case HeadLinear():
            return HeadLinearModule(op, parameters)
        case HeadCopy():
            return HeadCopyModule(op)
        case Norm() | AddNorm():
            return NormModule(op, parameters, ops)
        case Rope():
            return RopeModule(op, ops)
        case WriteKV():
            return WriteKVModule(op, entries[op.entry], ops)
        case RotateAndWriteKV():
            return RotateAndWriteKVModule(op, entries[op.write.entry], ops)
        case Attend():
            return AttendModule(op, entries[op.entry], parameters, backend)
        case Activation():
            return ActivationModule(op, ops)
        case Route():
            return RouteModule(op, parameters, ops)
        case Experts():
            return ExpertsModule(op, parameters, coded, ops)
        case Add() | Scale() | Cap() | Clip() | Gate() | Multiply():
            return ColumnsModule(op, ops)
        case Convolve():
            return ConvolveModule(op, parameters, ops)
        case DeltaRule():
            return DeltaRuleModule(op, parameters, ops)
        case StateSpace():
            return StateSpaceModule(op, parameters, ops)
        case Xielu():
            return XieluModule(op, parameters, ops)
        case _:
            raise ValueError(f"torch has no {type(op).__name__}")
