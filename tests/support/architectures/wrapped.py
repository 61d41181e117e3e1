"""Multimodal checkpoints, whose text part alone is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from support.architectures.native import Native
from support.architectures.variant import Oracle, Tensors


@dataclass(frozen=True)
class Wrapped:
    """A text model whose fields are in `text_config`, beside tensors of a vision tower.

    Attributes:
        text: makes the text part.
        prefixes: by the prefix of the text model's tensors, the prefix in the checkpoint.
        vision: a tensor of the vision tower.
    """

    oracle: ClassVar[str] = "transformers"
    text: Native
    prefixes: Mapping[str, str]
    vision: str = "vision_tower.post_layernorm.weight"

    def random_checkpoint(
        self, config: Mapping[str, Any], seed: int
    ) -> tuple[dict[str, Any], Tensors]:
        text_config, tensors = self.text.random_checkpoint(config["text_config"], seed)
        renamed = {_renamed(name, self.prefixes): value for name, value in tensors.items()}
        tensors = {**renamed, self.vision: torch.ones(24)}
        return {**config, "text_config": text_config}, tensors

    def load(
        self, config: Mapping[str, Any], tensors: Tensors, max_model_len: int | None
    ) -> Oracle:
        back = {theirs: ours for ours, theirs in self.prefixes.items()}
        text = {
            _renamed(name, back): value for name, value in tensors.items() if name != self.vision
        }
        return self.text.load(config["text_config"], text, max_model_len)


def _renamed(name: str, prefixes: Mapping[str, str]) -> str:
    for old, new in prefixes.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name
