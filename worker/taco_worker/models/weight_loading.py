"""Loads a checkpoint's weights into a model, reading each tensor once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from taco_common.progress import Progress
from taco_worker.models.config import ModelConfig
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.plan.parameters import Fill
from taco_worker.models.tensor_files import iterate_tensors
from taco_worker.models.weight_files import LoadFormat, check_tensor_names, find_weight_files
from taco_worker.models.weight_sources import WeightSources


class WeightSink(Protocol):
    """Receives parameters, whole or some rows at a time, in any order.

    Attributes:
        dtype, device: of random weights. A GPU makes billions of them in a second, a CPU in
            minutes.
    """

    dtype: torch.dtype
    device: torch.device

    def put(self, parameter: str, start: int, rows: Tensor, expert: int | None) -> None:
        """Store `rows` into the parameter from row `start`; they may be views of a file.

        Args:
            expert: index on the parameter's first axis, if that is one of experts.
        """
        ...


def load_weights(
    sink: WeightSink,
    model_dir: Path,
    config: ModelConfig,
    *,
    load_format: LoadFormat = "auto",
    seed: int = 0,
) -> None:
    """Load the weights of `model_dir` into `sink`.

    Args:
        load_format: "auto" (safetensors, else .bin), "safetensors", "pt" (.bin), or "dummy"
            (random weights; no weight file is read).
        seed: of random weights, which are equal in every process on the same kind of device.

    Raises:
        ValueError: weight files are missing or damaged, or their tensors are not exactly the
            architecture's.
    """
    if load_format == "dummy":
        _fill_randomly(sink, config.plan, seed)
    else:
        load_plans([(sink, config.plan)], find_weight_files(model_dir, load_format))


def load_plans(parts: Sequence[tuple[WeightSink, ModelPlan]], files: Sequence[Path]) -> None:
    """Load the weights of plans that share one checkpoint, and its `TensorNames`.

    Raises:
        ValueError: files are damaged, or their tensors are not exactly those of the plans.
    """
    sources = [(sink, WeightSources(plan)) for sink, plan in parts]
    canonical = sources[0][1].canonical
    found: set[str] = set()
    unexpected: list[str] = []
    misshapen: list[str] = []
    integers: list[str] = []
    quantized = _QuantizedRows()
    with Progress("loading weights", sum(file.stat().st_size for file in files)) as progress:
        for stored_name, tensor in itertools.chain.from_iterable(map(iterate_tensors, files)):
            name = canonical(stored_name)
            if name is None:
                continue
            fills = [(sink, fill) for sink, one in sources for fill in one.fills.get(name, [])]
            if not fills:
                unexpected.append(stored_name)
                continue
            found.add(name)
            is_plain = all(fill.dequantization is None for _, fill in fills)
            if is_plain and not tensor.is_floating_point():
                integers.append(f"{stored_name} ({str(tensor.dtype).removeprefix('torch.')})")
                continue
            for sink, fill in fills:
                if tuple(tensor.shape) == fill.stored_shape:
                    rows = quantized.rows(name, fill, tensor)
                    if rows is not None:
                        sink.put(fill.parameter, fill.start, rows, fill.expert)
                else:
                    shapes = f"(is {list(tensor.shape)}, should be {list(fill.stored_shape)})"
                    misshapen.append(f"{stored_name} {shapes}")
                    break
            progress.advance(tensor.nbytes)
    missing = sorted({name for _, one in sources for name in one.missing(found)})
    check_tensor_names(files[0].parent, missing, unexpected, misshapen, integers)


class _QuantizedRows:
    """Dequantizes rows as soon as all tensors that hold a part of them are read."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, int | None, int], dict[str, Tensor]] = {}

    def rows(self, name: str, fill: Fill, tensor: Tensor) -> Tensor | None:
        """The rows that the tensor `name` fills; None: another tensor is needed first."""
        rows: Tensor = fill.rows(tensor)
        if fill.dequantization is None:
            return rows
        key = (fill.parameter, fill.expert, fill.start)
        parts = self._parts.setdefault(key, {})
        parts[name] = rows
        if len(parts) < len(fill.names):
            return None
        del self._parts[key]  # parts are views of files
        dequantized: Tensor = fill.dequantization.dequantize(*(parts[one] for one in fill.names))
        return dequantized


def _fill_randomly(sink: WeightSink, plan: ModelPlan, seed: int) -> None:
    """Random weights that keep activations in range: norms are 1, biases 0, matrices small."""
    generator = torch.Generator(sink.device).manual_seed(seed)
    for name, parameter in plan.parameters.items():
        for expert in range(parameter.num_experts) if parameter.num_experts else [None]:
            shape = parameter.shape if expert is None else parameter.shape[1:]
            values = torch.empty(shape, dtype=sink.dtype, device=sink.device)
            if parameter.initial is None:
                values.normal_(std=shape[-1] ** -0.5, generator=generator)
            else:
                values.fill_(parameter.initial)
            sink.put(name, 0, values, expert)
