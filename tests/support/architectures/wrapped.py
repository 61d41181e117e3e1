"""Multimodal checkpoints, whose text part alone is computed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from support.architectures.variant import REMOVED, Layout, Oracle, Tensors


@dataclass(frozen=True)
class Wrapped:
    """A text model whose fields are in an object of config.json, beside a vision tower's tensors.

    Attributes:
        text: makes the text part.
        prefixes: by the prefix of the text model's tensors, the prefix in the checkpoint.
        vision: a tensor of the vision tower.
        field: of config.json, with the text model's fields.
    """

    oracle: ClassVar[str] = "transformers"
    text: Layout
    prefixes: Mapping[str, str]
    vision: str = "vision_tower.post_layernorm.weight"
    field: str = "text_config"

    def random_checkpoint(
        self, config: Mapping[str, Any], seed: int
    ) -> tuple[dict[str, Any], Tensors]:
        text_config, tensors = self.text.random_checkpoint(config[self.field], seed)
        renamed = {_renamed(name, self.prefixes): value for name, value in tensors.items()}
        tensors = {**renamed, self.vision: torch.ones(24)}
        return {**config, self.field: text_config}, tensors

    def load(
        self, config: Mapping[str, Any], tensors: Tensors, max_model_len: int | None
    ) -> Oracle:
        back = {theirs: ours for ours, theirs in self.prefixes.items()}
        text = {
            _renamed(name, back): value for name, value in tensors.items() if name != self.vision
        }
        return self.text.load(config[self.field], text, max_model_len)


def text_sweep(
    text: Mapping[str, Any], fields: Iterable[tuple[str, Any]], field: str = "text_config"
) -> tuple[tuple[str, Any], ...]:
    """A sweep over fields of the text model, whose config is `text`; `field` is as of `Wrapped`."""
    changed = ({**text, name: value} for name, value in fields)
    return tuple(
        (field, {name: value for name, value in one.items() if value is not REMOVED})
        for one in changed
    )


def _renamed(name: str, prefixes: Mapping[str, str]) -> str:
    for old, new in prefixes.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name
