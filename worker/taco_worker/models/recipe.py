"""The interface of a recipe, and helpers to write its weight map."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from taco_worker.models.decoder_config import DecoderConfig


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """The place of one checkpoint tensor in the decoder.

    Attributes:
        parameter: name of the decoder's parameter.
        start, size: the rows of it that the tensor fills; size None means all of them.
        transpose: the checkpoint stores the matrix as [in, out] (GPT-2's Conv1D).
    """

    parameter: str
    start: int = 0
    size: int | None = None
    transpose: bool = False


WeightMap = dict[str, WeightSlot]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Maps one architecture to the decoder.

    Attributes:
        decoder_config: config.json to DecoderConfig; a KeyError names a missing field.
        weight_map: every tensor that a checkpoint must hold, by canonical name.
        canonical_name: a checkpoint's tensor name to the canonical one; None for an optional tensor
            that is not needed (a buffer, a tied copy).
    """

    decoder_config: Callable[[Mapping[str, Any]], DecoderConfig]
    weight_map: Callable[[DecoderConfig], WeightMap]
    canonical_name: Callable[[str, DecoderConfig], str | None]


def whole(source: str, target: str, *, bias: bool, transpose: bool = False) -> WeightMap:
    """Map a module whose weight (and bias) is one whole parameter of the decoder."""
    slots = {f"{source}.weight": WeightSlot(f"{target}.weight", transpose=transpose)}
    if bias:
        slots[f"{source}.bias"] = WeightSlot(f"{target}.bias")
    return slots


def fused(sources: Mapping[str, int], target: str, *, bias: bool) -> WeightMap:
    """Map several linear modules (name to output size) to consecutive rows of a fused one."""
    slots: WeightMap = {}
    start = 0
    for source, size in sources.items():
        slots[f"{source}.weight"] = WeightSlot(f"{target}.weight", start, size)
        if bias:
            slots[f"{source}.bias"] = WeightSlot(f"{target}.bias", start, size)
        start += size
    return slots
