"""Loads a checkpoint's weights into a model, reading each tensor once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from taco_common.progress import Progress
from taco_worker.models.config import ModelConfig
from taco_worker.models.lora.adapter import read_adapter
from taco_worker.models.lora.merging import AdapterMerger
from taco_worker.models.numpy_cache import is_numpy_file, iterate_numpy_file, numpy_files
from taco_worker.models.plan.model_plan import ModelPlan
from taco_worker.models.quantized_matrices import QuantizedMatrices, QuantizingSink
from taco_worker.models.tensor_check import TensorCheck
from taco_worker.models.tensor_files import dtype_name, iterate_tensors
from taco_worker.models.weight_files import find_weight_files
from taco_worker.models.weight_sink import WeightSink
from taco_worker.models.weight_sources import WeightSources
from taco_worker.quant.weight_format import Quantization


def load_weights(sink: WeightSink, config: ModelConfig, *, seed: int = 0) -> None:
    """Load the weights of a model into `sink`.

    Args:
        seed: of random weights, which are equal in every process on the same kind of device.

    Raises:
        ValueError: weight files are missing or damaged, or their tensors are not exactly the
            architecture's.
    """
    if config.online_quantization is not None:
        sink = QuantizingSink(sink, config.plan, config.online_quantization)
    load_format = config.files.load_format
    if load_format == "dummy":
        _fill_randomly(sink, config.plan, seed)
        return
    files = find_weight_files(config.files)
    if load_format == "npcache":
        files = numpy_files(files)
    load_plans([(sink, config.plan)], files, config.quantization, config.files.adapter)


def load_plans(
    parts: Sequence[tuple[WeightSink, ModelPlan]],
    files: Sequence[Path],
    quantization: Quantization | None = None,
    adapter: Path | None = None,
) -> None:
    """Load the weights of plans that share one checkpoint, and its `TensorNames`.

    Args:
        adapter: directory of a LoRA adapter for the first plan, which is merged into its weights.

    Raises:
        ValueError: files are damaged, or their tensors are not exactly those of the plans.
    """
    sources = [(sink, WeightSources(plan, quantization)) for sink, plan in parts]
    first = sources[0][1]
    merger = None
    if adapter is not None:
        merger = AdapterMerger(read_adapter(adapter, parts[0][1], first))
    check = TensorCheck(files[0].parent)
    matrices = QuantizedMatrices()
    with Progress("loading weights", sum(file.stat().st_size for file in files)) as progress:
        for file, (stored_name, tensor) in _tensors(files):
            name = first.canonical(stored_name)
            if name is None:
                continue
            fills = [(sink, fill) for sink, one in sources for fill in one.fills.get(name, [])]
            if not fills:
                if not (first.is_extra(name) or _is_zero_bias(first, name, tensor)):
                    check.add_unexpected(stored_name)
            elif check.fits(
                stored_name,
                name,
                tensor.shape,
                dtype_name(tensor),
                [fill for _, fill in fills],
                file,
            ):
                if merger is not None:
                    tensor = merger.merged(name, tensor)
                for sink, fill in fills:
                    if fill.matrix is None:
                        sink.put(fill.parameter, fill.start, fill.rows(tensor), fill.expert)
                for sink, one in sources:
                    matrices.add(sink, one.fills.get(name, []), name, tensor, file)
            progress.advance(tensor.nbytes)
    check.raise_for({name for _, one in sources for name in one.missing(check.found)})
    matrices.finish()
    if merger is not None:
        merger.finish()


def _tensors(files: Sequence[Path]) -> Iterator[tuple[Path, tuple[str, Tensor]]]:
    for file in files:
        for item in _iterate(file):
            yield file, item


def _iterate(file: Path) -> Iterator[tuple[str, Tensor]]:
    return iterate_numpy_file(file) if is_numpy_file(file) else iterate_tensors(file)


def _is_zero_bias(sources: WeightSources, name: str, tensor: Tensor) -> bool:
    return sources.may_be_zero_bias(name) and not bool(tensor.any())


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
