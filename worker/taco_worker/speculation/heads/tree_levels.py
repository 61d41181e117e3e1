"""Runs a draft head's layer over the nodes of all trees, one level at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from taco_worker.models.step_model import StepModel
from taco_worker.speculation.heads.draft_tree import Expansion
from taco_worker.speculation.heads.eagle_models import EagleModel


@dataclass(frozen=True, slots=True)
class Context:
    """The sequences' tokens that the trees attend to.

    Attributes:
        positions: int64 [num_rows], the layer's position of the root's children.
        keys, values: [num_rows, longest + room, num_kv_heads, head_dim].
        is_seen: bool [num_rows, longest + room], which of these are a sequence's tokens.
        room: the last entries of each row, reserved for the nodes of trees.
    """

    positions: Tensor
    keys: Tensor
    values: Tensor
    is_seen: Tensor
    room: int


class TreeLevels:
    """A node sees its sequence's tokens, its ancestors and itself. KV of nodes is stored only in
    the context, so drafts change no sequence."""

    def __init__(self, model: EagleModel, target: StepModel, context: Context) -> None:
        self._model = model
        self._target = target
        self._context = context
        self._positions = context.positions
        self._end = context.keys.shape[1] - context.room
        self._is_seen = context.is_seen[:, None]  # for each node of the last level

    def run(self, expansion: Expansion, features: Tensor) -> Tensor:
        """Compute one more level.

        Args:
            features: [num_rows, nodes of the last expansion, hidden_size], its outputs.

        Returns:
            [num_rows, width, hidden_size], the feature after each node.
        """
        model, layer, context = self._model, self._model.layer, self._context
        num_rows, width = expansion.token_ids.shape
        places = upload(expansion.places, self._target)
        features = _of_parents(features, places).flatten(0, 1)
        embedded = self._target.embed(upload(expansion.token_ids.ravel(), self._target))
        mixed, residual = model.mix(embedded, features)
        positions = self._positions.repeat_interleave(width)
        queries = layer.queries(mixed, positions).unflatten(0, (num_rows, width))
        keys, values = layer.keys_values(mixed, positions)

        begin, end = self._end, self._end + width
        context.keys[:, begin:end] = keys.unflatten(0, (num_rows, width))
        context.values[:, begin:end] = values.unflatten(0, (num_rows, width))
        self._is_seen = _of_parents(self._is_seen, places)
        self._is_seen[:, :, begin:end] = torch.eye(width, dtype=torch.bool, device=places.device)
        attended = layer.attend(
            queries, context.keys[:, :end], context.values[:, :end], self._is_seen[:, :, :end]
        )
        self._positions, self._end = self._positions + 1, end
        return layer.finish(residual, attended).unflatten(0, (num_rows, width))


def upload(values: npt.NDArray[Any], target: StepModel) -> Tensor:
    """Upload integers as indices to the target's device."""
    return torch.from_numpy(values.astype(np.int64)).to(target.device)


def _of_parents(rows: Tensor, places: Tensor) -> Tensor:
    """Gather from rows [num_rows, num_parents, size] the row of each node's parent."""
    return rows.gather(1, places[:, :, None].expand(-1, -1, rows.shape[2]))
