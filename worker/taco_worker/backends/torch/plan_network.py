"""A model plan as a torch network: computes hidden states over a paged KV cache, and logits."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn

from taco_worker.attention.backend import AttentionBackend
from taco_worker.attention.kv_cache import KVCache
from taco_worker.attention.metadata import AttentionMetadata
from taco_worker.backends.torch.adapters import AdapterWeights
from taco_worker.backends.torch.coded_weight import CodedWeight
from taco_worker.backends.torch.fusion import TorchOp, fuse
from taco_worker.backends.torch.op_modules import ExpertsModule, make_module
from taco_worker.backends.torch.step_buffers import StepBuffers, StepTokens
from taco_worker.layers.ops import LayerOps
from taco_worker.layers.rotary import cos_sin_table
from taco_worker.layers.sequence_states import SequenceStates, StateMemory
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.ops.experts import Route
from taco_worker.models.plan.ops.linear import HeadCopy, HeadLinear
from taco_worker.models.plan.ops.norm import Norm
from taco_worker.models.plan.ops.op import Op
from taco_worker.models.plan.slices import Slice

EMPTY: Mapping[str, AdapterWeights] = MappingProxyType({})


class OpSequence(nn.Module):
    """Ops that run one after another."""

    def __init__(self, ops: list[nn.Module]) -> None:
        super().__init__()
        self.ops = nn.ModuleList(ops)

    def forward(self, step: StepBuffers, tokens: StepTokens | None) -> None:
        for op in self.ops:
            op(step, tokens)


class PlanNetwork(nn.Module):
    """Runs the ops of a plan.

    Parameters are allocated but not initialised: the loader fills them. Callers run the network
    under `torch.inference_mode()`.

    Attributes:
        layers: one module per layer, which owns the layer's parameters.
        by_name: the parameters by their names in the plan, without those of `coded`.
        coded: parameters that keep codes, by their names in the plan.
        kept_layers: layers whose outputs `forward` also returns, in this order.
    """

    def __init__(
        self,
        plan: ModelPlan,
        backend: AttentionBackend,
        ops: LayerOps,
        *,
        dtype: torch.dtype,
        device: torch.device,
        num_host_layers: int = 0,
        coded: Collection[str] = (),
        adapters: Mapping[str, AdapterWeights] = EMPTY,
    ) -> None:
        """
        Args:
            num_host_layers: the last layers with weights on the host; see weight_offload.
            coded: parameters that keep the codes of quantized matrices.
            adapters: of the linear layers that are adapted, by the parameter of their weight.

        Raises:
            ValueError: the plan has an op that torch lacks.
        """
        super().__init__()
        self.plan = plan
        self.supports_trees = backend.supports_trees
        self._backend, self._layer_ops = backend, ops
        self.dtype = dtype
        self.device = device
        self.kept_layers: tuple[int, ...] = ()
        first_on_host = plan.num_layers - num_host_layers
        # Few choices would survive the rounding of this sum of scores and bias.
        choice_biases = {op.bias for op in plan.ops if isinstance(op, Route)}
        self.by_name: dict[str, nn.Parameter] = {}
        self.coded: dict[str, CodedWeight] = {}
        for name, parameter in plan.parameters.items():
            is_on_host = name.startswith("layers.") and int(name.split(".")[1]) >= first_on_host
            place = torch.device("cpu") if is_on_host else device
            is_wide = name in choice_biases or parameter.is_wide
            values_dtype = torch.float32 if is_wide else dtype
            if name in coded:
                self.coded[name] = CodedWeight(parameter.shape, dtype=values_dtype, device=place)
                continue
            values = torch.empty(parameter.shape, dtype=values_dtype, device=place)
            self.by_name[name] = nn.Parameter(values, requires_grad=False)

        def sequence(part: tuple[TorchOp, ...]) -> OpSequence:
            return OpSequence(
                [
                    make_module(
                        op, self.by_name, self.coded, plan.kv_entries, ops, backend, adapters
                    )
                    for op in part
                ]
            )

        fused = fuse(plan)
        self.embedding = sequence(fused.embedding)
        self.layers = nn.ModuleList(sequence(layer) for layer in fused.layers)
        self.final = sequence(fused.final)
        self.logits = sequence(plan.logits)
        self._pending = fused.pending
        self._widths = _partly_written(plan)
        self._cos_sin: dict[str, Tensor] = {}
        self._sections = {name: table.rotary.sections for name, table in plan.rope_tables.items()}

    def sibling(self, plan: ModelPlan) -> PlanNetwork:
        """A network of another plan with the same kernels, dtype and device."""
        return PlanNetwork(
            plan, self._backend, self._layer_ops, dtype=self.dtype, device=self.device
        )

    def finish_loading(self) -> None:
        """Call it when all parameters are loaded."""
        for module in self.modules():
            if isinstance(module, ExpertsModule):
                module.finish_loading()

    def prepare_positions(self, num_positions: int) -> None:
        """Compute the rope tables of `num_positions` positions; call it before `forward`."""
        for name, table in self.plan.rope_tables.items():
            self._cos_sin[name] = cos_sin_table(
                table.rotary, table.rotary_dim, num_positions, self.device, growth=table.growth
            )

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        kv_cache: KVCache,
        attn_metadata: AttentionMetadata,
        *,
        rope_positions: Tensor | None = None,
        embeddings: tuple[Tensor, Tensor] | None = None,
        columns: Tensor | None = None,
        adapter_ids: Tensor | None = None,
        state_memory: StateMemory | None = None,
        states: SequenceStates | None = None,
    ) -> Tensor:
        """Run one step and write its keys and values into `kv_cache`.

        Args:
            token_ids, positions: integers [num_tokens], sequence after sequence.
            rope_positions, embeddings, adapter_ids, state_memory, states: as in `StepTokens`.
            columns: of the op Input, see `ModelInput`.

        Returns:
            Hidden states after the final ops, then the outputs of `kept_layers`,
            [num_tokens, (1 + len(kept_layers)) * hidden_size].
        """
        tokens = StepTokens(
            token_ids,
            positions,
            self._cos_sin,
            self._sections,
            kv_cache,
            attn_metadata,
            rope_positions,
            embeddings,
            columns,
            adapter_ids,
            state_memory,
            states,
        )
        step = StepBuffers(self._widths)
        self.embedding(step, tokens)
        kept: dict[int, Tensor] = {}
        for index, layer in enumerate(self.layers):
            layer(step, tokens)
            if index in self.kept_layers:
                kept[index] = self._layer_output(step, self._pending[index])
        self.final(step, tokens)
        hidden = step.read(self.plan.hidden)
        if not kept:
            return hidden
        return torch.cat([hidden, *(kept[index] for index in self.kept_layers)], dim=1)

    def embed(self, token_ids: Tensor) -> Tensor:
        """[num_rows] to [num_rows, embedding_size]."""
        return nn.functional.embedding(token_ids, self.by_name[self.plan.embedding_table])

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """hidden [num_rows, hidden_size] to float32 logits [num_rows, vocab_size]."""
        return self.project(hidden).float()

    def project(self, hidden: Tensor) -> Tensor:
        """The logits of `hidden` in the model's dtype."""
        step = StepBuffers({}, {self.plan.hidden.buffer: hidden})
        self.logits(step, None)
        assert self.plan.logits_out is not None
        return step.read(self.plan.logits_out)

    def _layer_output(self, step: StepBuffers, pending: Slice | None) -> Tensor:
        """The stream after a layer; the next op may not have added the layer's last part yet."""
        stream = step.read(self.plan.stream)
        return stream.clone() if pending is None else stream + step.read(pending)


def _partly_written(plan: ModelPlan) -> dict[str, int]:
    """Columns of the buffers of which an op writes only a part."""
    return {
        part.buffer: plan.buffers[part.buffer]
        for op in plan.ops
        for part in op.writes
        if _writes_a_part(op, part, plan.buffers[part.buffer])
    }


def _writes_a_part(op: Op, part: Slice, width: int) -> bool:
    match op:
        case HeadLinear() | HeadCopy():
            return True
        case Norm() if part == op.x:
            return part.size < width
        case _:
            return part not in op.reads and part.start > 0
