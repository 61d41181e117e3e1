"""The factors A and B of the adapters that requests may name, as linear layers use them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from taco_worker.models.lora.adapter import LoraAdapter
from taco_worker.models.lora.requested import AdapterPart, RequestedAdapters
from taco_worker.models.plan.views import Columns
from taco_worker.models.tensor_files import iterate_tensors

Factors = tuple[Tensor, Tensor]


def read_factors(requested: RequestedAdapters) -> Iterator[tuple[str, list[Factors | None]]]:
    """For each weight [n, k] that is changed: A [rank, k] and B [n, rank] of each adapter, float32.

    An adapter adds B·A to the weight; None: it adds nothing.

    Raises:
        ValueError: a file cannot be read, or has numbers that are not finite.
    """
    tensors = [_tensors(adapter) for adapter in requested.adapters]
    for weight, of_adapters in requested.parts.items():
        num_rows = requested.shapes[weight][0]
        yield (
            weight,
            [
                _combined(parts, tensors[index], num_rows) if parts else None
                for index, parts in enumerate(of_adapters)
            ],
        )


def _tensors(adapter: LoraAdapter) -> dict[str, Tensor]:
    """The tensors of an adapter's file that the model needs, which are small, by stored name."""
    needed = {name for product in adapter.products.values() for name in (product.a, product.b)}
    tensors: dict[str, Tensor] = {}
    for name, tensor in iterate_tensors(adapter.file, needed.__contains__):
        if not tensor.isfinite().all():  # a back end may multiply other rows with zeros
            raise ValueError(f"{adapter.file} has numbers that are not finite in {name}")
        tensors[name] = tensor.clone()
    return tensors


def _combined(
    parts: Sequence[AdapterPart], tensors: Mapping[str, Tensor], num_rows: int
) -> Factors:
    """A and B of all parts of a weight: the rows of each A, and the columns of each B.

    B has the factor alpha / rank.
    """
    all_a, all_b = [], []
    for part in parts:
        a, b = tensors[part.product.a].float(), tensors[part.product.b].float()
        for view in part.fill.views:
            if isinstance(view, Columns):
                a = view.apply(a)
            else:
                b = view.apply(b)
        rows = b.new_zeros(num_rows, b.shape[1])
        rows[part.fill.start : part.fill.start + b.shape[0]] = b * part.product.scale
        if not rows.isfinite().all():
            raise ValueError(f"{part.product.b} of a LoRA adapter overflows with its lora_alpha")
        all_a.append(a)
        all_b.append(rows)
    return torch.cat(all_a), torch.cat(all_b, dim=1)
