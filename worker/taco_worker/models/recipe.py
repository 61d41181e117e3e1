"""What a recipe is, and the vocabulary that recipes write their weight maps in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from taco_worker.models.decoder_config import DecoderConfig


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """Where one tensor of a checkpoint belongs.

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
    """How one architecture maps to the decoder.

    Attributes:
        decoder_config: config.json to DecoderConfig; a KeyError names a field that is missing.
        weight_map: every tensor that a checkpoint must hold, by canonical name.
        canonical_name: a checkpoint's own name to the canonical one, or None for a tensor that
            may be there and is not needed (a buffer, a tied copy).
    """

    decoder_config: Callable[[Mapping[str, Any]], DecoderConfig]
    weight_map: Callable[[DecoderConfig], WeightMap]
    canonical_name: Callable[[str, DecoderConfig], str | None]


def whole(source: str, target: str, *, bias: bool, transpose: bool = False) -> WeightMap:
    """A module whose weight (and bias) is one parameter here as there."""
    slots = {f"{source}.weight": WeightSlot(f"{target}.weight", transpose=transpose)}
    if bias:
        slots[f"{source}.bias"] = WeightSlot(f"{target}.bias")
    return slots


def fused(sources: Mapping[str, int], target: str, *, bias: bool) -> WeightMap:
    """Several linear modules (name to output size), one below the other in a fused one."""
    slots: WeightMap = {}
    start = 0
    for source, size in sources.items():
        slots[f"{source}.weight"] = WeightSlot(f"{target}.weight", start, size)
        if bias:
            slots[f"{source}.bias"] = WeightSlot(f"{target}.bias", start, size)
        start += size
    return slots
