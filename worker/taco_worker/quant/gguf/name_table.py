"""Hugging Face's names of one architecture's tensors, and what GGUF files change in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

LAYER, EXPERT = "{layer}", "{expert}"
_SUFFIXES = ("weight", "bias")
_LAYER_TENSOR = re.compile(r"blk\.(\d{1,4})\.(.+)")
# Files of 2023 and early 2024 have a tensor for each expert.
_EXPERT_TENSOR = re.compile(r"(ffn_(?:gate|up|down))\.(\d{1,4})")
# By key: those of one key follow one another, as Hugging Face has them. Tiled: the first one of all
# keys, then the second one of all keys.
ValueHeads = Literal["by_key", "tiled"]


@dataclass(frozen=True, slots=True)
class NameTable:
    """The modules of an architecture.

    Attributes:
        layer: module of a layer, without its number.
        modules: names in Hugging Face's format, by the file's; of a layer's without "blk.N.".
        permuted: of Q and K, the rows of a head that are rotated together are neighbours.
        heads_by_kind: a fused QKV has all queries, then all keys, then all values.
        shifted_norms: weights of norms are stored as the sum of 1 and Hugging Face's.
        transposed: modules whose matrices Hugging Face stores as [in, out].
        joined_rows: modules whose rows are one matrix, in their order.
        joined_heads: keys and values of heads that are one matrix (`LatentHeads`).
        norms_by_head: norms of queries and keys have weights for each head.
        value_heads: order of the value heads of Gated DeltaNet; None: no layer has it.
    """

    layer: str
    modules: Mapping[str, str]
    permuted: bool = False
    heads_by_kind: bool = False
    shifted_norms: bool = False
    transposed: frozenset[str] = frozenset()
    joined_rows: tuple[str, ...] = ()
    joined_heads: tuple[str, ...] = ()
    norms_by_head: bool = False
    value_heads: ValueHeads | None = None

    def with_modules(self, *changed: Mapping[str, str], lacks: tuple[str, ...] = ()) -> NameTable:
        """With other names, and without the modules that the architecture lacks."""
        modules = dict(self.modules)
        for names in changed:
            modules.update(names)
        return replace(self, modules={k: v for k, v in modules.items() if k not in lacks})

    def layer_of(self, name: str) -> int | None:
        """The number of a tensor's layer; None: it is outside of the layers."""
        match = _LAYER_TENSOR.fullmatch(name)
        return None if match is None else int(match[1])

    def find(self, name: str) -> tuple[str, str, str] | None:
        """Of a tensor: its name in `modules`, Hugging Face's module, and the suffix.

        None: the architecture has no such tensor.
        """
        base, suffix = split_suffix(name)
        match = _LAYER_TENSOR.fullmatch(base)
        layer = "" if match is None else f"{self.layer}.{match[1]}"
        own = base if match is None else match[2]
        if expert := _EXPERT_TENSOR.fullmatch(own):
            stacked = self.modules.get(f"{expert[1]}_exps", "")
            module = stacked.replace(EXPERT, expert[2]) or None
        else:
            module = self.modules.get(own)
        if module is None or (LAYER in module) != (match is not None):
            return None
        return own, module.replace(LAYER, layer), suffix


def by_parts(prefix: str, **modules: str) -> dict[str, str]:
    """Modules of a layer by the file's names; `prefix` is before all of them."""
    return {name: f"{LAYER}.{prefix}{module}" for name, module in modules.items()}


def split_suffix(name: str) -> tuple[str, str]:
    """A tensor's name without its suffix, and the suffix, which some lack (`blk.0.ssm_a`)."""
    base, dot, suffix = name.rpartition(".")
    return (base, dot + suffix) if suffix in _SUFFIXES else (name, "")
