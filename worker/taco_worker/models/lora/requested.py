"""The LoRA adapters that requests may name, and what they change in a model. Without torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from taco_worker.models.lora.adapter import LoraAdapter, Product, read_adapter
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.ops.linear import Linear
from taco_worker.models.plan.ops.op import Op
from taco_worker.models.plan.parameters import Fill
from taco_worker.models.plan.views import Columns, EveryRow, GroupedRows, SwappedHalves, Transpose
from taco_worker.models.weight_sources import WeightSources

# What chooses and reorders the rows of a weight, and so those of its B.
_ROW_VIEWS = GroupedRows | EveryRow | SwappedHalves


@dataclass(frozen=True, slots=True)
class AdapterPart:
    """A product of an adapter, and the rows of a weight [n, k] that it is added to.

    Attributes:
        fill: with views of rows, which are those of B, and of columns, which are those of A.
    """

    product: Product
    fill: Fill


@dataclass(frozen=True, slots=True)
class RequestedAdapters:
    """Adapters whose products are added to those of linear layers, for the tokens that name them.

    Attributes:
        names: of the adapters, in the order of their ids.
        adapters: in the same order.
        parts: for each weight that an adapter changes, the parts of each adapter.
        shapes: (n, k) of these weights.
    """

    names: tuple[str, ...]
    adapters: tuple[LoraAdapter, ...]
    parts: Mapping[str, Sequence[Sequence[AdapterPart]]]
    shapes: Mapping[str, tuple[int, ...]]

    def adapted(self, plan: ModelPlan) -> ModelPlan:
        """The plan with `Linear.is_adapted` of the weights that an adapter changes."""
        return replace(
            plan,
            embedding=self._adapted(plan.embedding),
            layers=tuple(map(self._adapted, plan.layers)),
            final=self._adapted(plan.final),
        )

    def _adapted(self, ops: tuple[Op, ...]) -> tuple[Op, ...]:
        return tuple(
            replace(op, is_adapted=True)
            if isinstance(op, Linear) and op.weight in self.parts
            else op
            for op in ops
        )


def read_requested(plan: ModelPlan, adapters: Sequence[tuple[str, Path]]) -> RequestedAdapters:
    """Read what adapters change, from their settings and the headers of their files.

    The model may be quantized: its weights stay as they are.

    Args:
        adapters: names and directories.

    Raises:
        ValueError: a directory has no LoRA adapter, or one that does not fit the model, or that
            changes something else than linear layers.
    """
    sources = WeightSources(plan)
    linears = {op.weight for op in plan.ops if isinstance(op, Linear)}
    read = tuple(read_adapter(directory, plan, sources) for _, directory in adapters)
    parts: dict[str, list[list[AdapterPart]]] = {}
    for index, adapter in enumerate(read):
        for part in _parts(adapter, sources):
            weight = part.fill.parameter
            if weight not in linears or part.fill.expert is not None:
                raise _unsupported(adapter, f"{part.product.module}.weight")
            parts.setdefault(weight, [[] for _ in adapters])[index].append(part)
    shapes = {weight: plan.parameters[weight].shape for weight in parts}
    return RequestedAdapters(tuple(name for name, _ in adapters), read, parts, shapes)


def _parts(adapter: LoraAdapter, sources: WeightSources) -> Iterator[AdapterPart]:
    if adapter.replaced:
        raise _unsupported(adapter, min(adapter.replaced))
    for name, product in adapter.products.items():
        for fill in sources.fills[name]:
            # A and B are those of [out, in], whatever the order of the weight.
            views = tuple(view for view in fill.views if not isinstance(view, Transpose))
            if not all(isinstance(view, _ROW_VIEWS | Columns) for view in views):
                raise _unsupported(adapter, name)
            yield AdapterPart(product, replace(fill, views=views))


def _unsupported(adapter: LoraAdapter, name: str) -> ValueError:
    return ValueError(
        f"{adapter.file} changes {name}: adapters that requests name may change the weights of "
        "linear layers alone, not embeddings, biases and experts; merge_lora merges one adapter of "
        "any kind"
    )
