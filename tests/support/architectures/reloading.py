"""Oracles of checkpoints that differ in few tensors, without a new model for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from support.architectures.native import load_model
from support.architectures.variant import Tensors


class Reloader:
    """As `load_model`, but copies the tensors that differ from the first checkpoint into its model.

    That takes a hundredth of the time. A new model is made where the first one does not hold the
    tensor under its name and as it is: transformers stacks experts, for example, and ties others.
    A model may be used until the next one is loaded.
    """

    def __init__(self) -> None:
        self._identity: object = None
        self._model: Any = None
        self._first: Tensors = {}
        self._held: Tensors = {}
        self._changed: set[str] = set()

    def __call__(
        self, model: str, fields: Mapping[str, Any], weights: Tensors, *, attention: str = "eager"
    ) -> Any:
        identity = model, dict(fields), attention, weights.keys()
        if self._identity != identity:
            self._identity, self._first = identity, weights
            own = {name: weight.clone() for name, weight in weights.items()}  # it keeps float32
            self._model = load_model(model, fields, own, attention=attention)
            self._held = _held_as_they_are(self._model, weights)
            self._changed = set()
            return self._model
        changed = {name for name in weights if not torch.equal(weights[name], self._first[name])}
        if not changed <= self._held.keys():
            return load_model(model, fields, weights, attention=attention)
        for name in changed | self._changed:
            self._held[name].copy_(weights[name])
        self._changed = changed
        return self._model


def _held_as_they_are(model: Any, weights: Tensors) -> Tensors:
    """The model's own tensors that equal those of `weights` by the same name, and are not tied."""
    stored = model.state_dict()
    addresses = [tensor.data_ptr() for tensor in stored.values()]
    return {
        name: stored[name]
        for name, weight in weights.items()
        if name in stored
        and torch.equal(stored[name], weight.float())
        and addresses.count(stored[name].data_ptr()) == 1
    }
