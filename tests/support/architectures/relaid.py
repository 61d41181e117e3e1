"""Architectures that transformers lacks, whose arithmetic is that of a class that it has.

A checkpoint is drawn in its published layout. The oracle moves the weights to the names and
layout of transformers' class, in one direction only, so that no error can cancel itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from support.architectures.native import load_model
from support.architectures.variant import Oracle, Tensors

Config = Mapping[str, Any]
Shapes = dict[str, tuple[int, ...]]


def _run(config: Config, model: Any, ids: Tensor) -> Tensor:
    return model(ids[None], use_cache=False).logits[0]


@dataclass(frozen=True)
class Relaid:
    """Checkpoints of an architecture, computed by another class.

    Attributes:
        model: the class of transformers.
        shapes: config -> the published tensors' shapes by name.
        to_native: config and max_model_len -> fields of the class's config.
        weights: config, published tensors -> the class's tensors by its names.
        run: config, model, ids [n] -> logits [n, vocab].
    """

    oracle: ClassVar[str] = "transformers, weights re-laid"
    model: str
    shapes: Callable[[Config], Shapes]
    to_native: Callable[[Config, int | None], dict[str, Any]]
    weights: Callable[[Config, Tensors], Tensors]
    run: Callable[[Config, Any, Tensor], Tensor] = _run

    def random_checkpoint(self, config: Config, seed: int) -> tuple[dict[str, Any], Tensors]:
        return dict(config), random_tensors(self.shapes(config), seed)

    def load(self, config: Config, tensors: Tensors, max_model_len: int | None) -> Oracle:
        floats = {name: value.float() for name, value in tensors.items()}
        weights = self.weights(config, floats)
        model = load_model(self.model, self.to_native(config, max_model_len), weights)
        return Oracle(lambda ids: self.run(config, model, ids))


def random_tensors(shapes: Shapes, seed: int) -> Tensors:
    """Random tensors: matrices of a usual size, norm weights around 1, biases around 0."""
    generator = torch.Generator().manual_seed(seed)

    def draw(name: str, shape: tuple[int, ...]) -> Tensor:
        values = torch.randn(shape, generator=generator)
        if len(shape) > 1:
            return values * 1.5 * shape[-1] ** -0.5
        return values * 0.2 + (0.0 if name.endswith(".bias") else 1.0)

    return {name: draw(name, shape) for name, shape in shapes.items()}


def split_grouped_qkv(
    qkv: Tensor, num_kv_heads: int, head_dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of rows that are grouped by KV head.

    `qkv` holds for each KV head the rows of its query heads, then of its key and its value.
    """
    groups = qkv.unflatten(0, (num_kv_heads, -1, head_dim))
    queries, keys, values = groups[:, :-2], groups[:, -2], groups[:, -1]
    return queries.flatten(0, 2), keys.flatten(0, 1), values.flatten(0, 1)
