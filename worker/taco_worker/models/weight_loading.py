"""Loads a checkpoint's weights into a model, reading each tensor once."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from taco_common.progress import Progress
from taco_worker.models.config import ModelConfig
from taco_worker.models.recipe import WeightSlot
from taco_worker.models.registry import find_recipe
from taco_worker.models.tensor_files import iterate_tensors
from taco_worker.models.weight_files import LoadFormat, check_tensor_names, find_weight_files


class WeightSink(Protocol):
    """Receives parameters, whole or some rows at a time, in any order.

    Attributes:
        shapes: of all parameters, by their names in `Decoder`.
        dtype, device: of random weights. A GPU makes billions of them in a second, a CPU in
            minutes.
    """

    shapes: Mapping[str, tuple[int, ...]]
    dtype: torch.dtype
    device: torch.device

    def put(self, parameter: str, start: int, rows: Tensor) -> None:
        """Store `rows` into the parameter from row `start`; they may be views of a file."""
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
        _fill_randomly(sink, seed)
    else:
        _fill_from_files(sink, config, find_weight_files(model_dir, load_format))


def _fill_from_files(sink: WeightSink, config: ModelConfig, files: list[Path]) -> None:
    _, recipe = find_recipe([config.architecture])
    slots = recipe.weight_map(config.decoder)
    missing = set(slots)
    unexpected: list[str] = []
    misshapen: list[str] = []
    with Progress("loading weights", sum(file.stat().st_size for file in files)) as progress:
        for stored_name, tensor in itertools.chain.from_iterable(map(iterate_tensors, files)):
            name = recipe.canonical_name(stored_name, config.decoder)
            if name is None:
                continue
            if name not in slots:
                unexpected.append(stored_name)
                continue
            missing.discard(name)
            slot = slots[name]
            wanted = _wanted_shape(sink.shapes[slot.parameter], slot)
            if tuple(tensor.shape) == wanted:
                turns = slot.transpose and tensor.ndim == 2
                sink.put(slot.parameter, slot.start, tensor.T if turns else tensor)
            else:
                shapes = f"(is {list(tensor.shape)}, should be {list(wanted)})"
                misshapen.append(f"{stored_name} {shapes}")
            progress.advance(tensor.nbytes)
    check_tensor_names(files[0].parent, sorted(missing), unexpected, misshapen)


def _wanted_shape(shape: tuple[int, ...], slot: WeightSlot) -> tuple[int, ...]:
    """The shape that a stored tensor must have to fill `slot` of a parameter."""
    wanted = shape if slot.size is None else (slot.size, *shape[1:])
    return wanted[::-1] if slot.transpose else wanted


def _fill_randomly(sink: WeightSink, seed: int) -> None:
    """Random weights that keep activations in range: norms are 1, biases 0, matrices small."""
    generator = torch.Generator(sink.device).manual_seed(seed)
    for name, shape in sink.shapes.items():
        values = torch.empty(shape, dtype=sink.dtype, device=sink.device)
        if len(shape) > 1:
            values.normal_(std=shape[1] ** -0.5, generator=generator)
        else:
            values.fill_(1.0 if name.endswith("norm.weight") else 0.0)
        sink.put(name, 0, values)
