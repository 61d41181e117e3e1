"""Fills a decoder's parameters from a checkpoint, each tensor copied once."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from taco_worker.attention.backend import create_attention_backend
from taco_worker.models.checkpoint import LoadFormat, find_weight_files, iterate_tensors
from taco_worker.models.config import ModelConfig
from taco_worker.models.decoder import Decoder
from taco_worker.models.recipe import WeightSlot
from taco_worker.models.registry import find_recipe

_NAMES_IN_ERROR = 5


def load_model(
    model_dir: Path,
    config: ModelConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    load_format: LoadFormat = "auto",
    seed: int = 0,
    attention_backend: str = "torch",
) -> Decoder:
    """Build the decoder that `config` describes, with the weights of `model_dir`.

    Args:
        load_format: "auto" (safetensors, else .bin), "safetensors", "pt" (.bin), or "dummy"
            (random weights; no weight file is read).
        seed: of random weights, which are the same in every process.

    Raises:
        ValueError: weight files are missing or damaged, or their tensors are not exactly those
            that the architecture has.
    """
    backend = create_attention_backend(attention_backend)
    decoder = Decoder(config.decoder, backend, dtype=dtype, device=device)
    if load_format == "dummy":
        _fill_randomly(decoder, seed)
    else:
        files = find_weight_files(model_dir, load_format)
        _fill_from_files(decoder, config.architecture, files)
    return decoder


def _fill_from_files(decoder: Decoder, architecture: str, files: list[Path]) -> None:
    _, recipe = find_recipe([architecture])
    slots = recipe.weight_map(decoder.config)
    parameters = dict(decoder.named_parameters())
    missing = set(slots)
    unexpected: list[str] = []
    misshapen: list[str] = []
    for file in files:
        for stored_name, tensor in iterate_tensors(file):
            name = recipe.canonical_name(stored_name, decoder.config)
            if name is None:
                continue
            if name not in slots:
                unexpected.append(stored_name)
                continue
            missing.discard(name)
            source, target = _match(tensor, parameters, slots[name])
            if source.shape == target.shape:
                target.copy_(source)
            else:
                misshapen.append(f"{stored_name} {_mismatch(source, target, slots[name])}")
    _check(files[0].parent, sorted(missing), unexpected, misshapen)


def _match(
    tensor: Tensor, parameters: dict[str, torch.nn.Parameter], slot: WeightSlot
) -> tuple[Tensor, Tensor]:
    """The stored tensor, turned our way, and the rows that it fills."""
    target = parameters[slot.parameter].data
    if slot.size is not None:
        target = target[slot.start : slot.start + slot.size]
    return (tensor.T if slot.transpose and tensor.ndim == 2 else tensor), target


def _mismatch(source: Tensor, target: Tensor, slot: WeightSlot) -> str:
    turn = -1 if slot.transpose else 1
    return f"(is {list(source.shape)[::turn]}, should be {list(target.shape)[::turn]})"


def _check(
    model_dir: Path, missing: list[str], unexpected: list[str], misshapen: list[str]
) -> None:
    problems = [
        f"{problem}: {_listed(names)}"
        for problem, names in (
            ("missing tensors", missing),
            ("unexpected tensors", unexpected),
            ("wrong shapes", misshapen),
        )
        if names
    ]
    if problems:
        raise ValueError(f"the weights in {model_dir} do not fit: {'; '.join(problems)}")


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMES_IN_ERROR])
    rest = len(names) - _NAMES_IN_ERROR
    return f"{shown} and {rest} more" if rest > 0 else shown


def _fill_randomly(decoder: Decoder, seed: int) -> None:
    """Weights that keep activations in range: norms as they would start, matrices small."""
    generator = torch.Generator(device=decoder.device).manual_seed(seed)
    for name, parameter in decoder.named_parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(std=parameter.shape[1] ** -0.5, generator=generator)
        else:
            parameter.data.fill_(1.0 if name.endswith("norm.weight") else 0.0)
