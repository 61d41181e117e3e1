"""Loads EAGLE and EAGLE 3: features of the target, and logits of features."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from taco_proto.errors import ConfigurationError
from taco_worker.models.config_fields import ConfigFields
from taco_worker.models.step_model import StepModel, check_kept_layers
from taco_worker.speculation.heads.eagle_recipe import (
    draft_vocab_size,
    eagle3_plans,
    eagle_plans,
    is_eagle3,
    named_target_layers,
)
from taco_worker.speculation.heads.head_checkpoint import HeadCheckpoint
from taco_worker.speculation.heads.row_model import RowModel


@dataclass(frozen=True, slots=True)
class EagleModel:
    """A head that computes the next feature from a token and the feature before it.

    Attributes:
        name: the drafter's name.
        hidden_layers: the target's layers from which features are computed.
        layer: its input is a token's embedding, then the feature before it.
        features_of: hidden states of the target to features; None: they are features.
        logits_of: features to logits; None: the target's LM head.
        token_ids: of the draft vocabulary, integers; None: it is the target's.
    """

    name: str
    hidden_layers: tuple[int, ...]
    target: StepModel
    layer: StepModel
    features_of: RowModel | None = None
    logits_of: RowModel | None = None
    token_ids: Tensor | None = None

    def features(self, hidden: Tensor) -> Tensor:
        """The target's hidden states to features, [num_rows, hidden_size]."""
        hidden = hidden.to(self.target.hidden_dtype)
        return hidden if self.features_of is None else self.features_of(hidden)

    def logits(self, features: Tensor) -> Tensor:
        """Float32 [num_rows, draft vocabulary]."""
        if self.logits_of is None:
            return self.target.compute_logits(features)
        return self.logits_of.logits(features)

    def target_ids(self, token_ids: Tensor) -> Tensor:
        """Ids of the draft vocabulary to token ids."""
        return token_ids if self.token_ids is None else self.token_ids[token_ids]


def load_eagle(checkpoint: HeadCheckpoint, target: StepModel) -> EagleModel:
    """Load the head of a checkpoint.

    Raises:
        ConfigurationError: the config lacks a field, tensors are missing, or the head is for
            another target.
    """
    fields = checkpoint.fields
    try:
        for what in ("hidden_size", "vocab_size"):
            own, wanted = fields.size(what), getattr(target.plan, what)
            if own != wanted:
                raise ConfigurationError(
                    f"the heads do not fit the model: their {what} is {own}, the model's is "
                    f"{wanted}"
                )
        if target.plan.embedding_size != target.plan.hidden_size:
            raise ConfigurationError("EAGLE needs embeddings as wide as the model's hidden states")
        load = _load_eagle3 if is_eagle3(fields) else _load_eagle
        return load(checkpoint, target)
    except KeyError as error:
        raise ConfigurationError(f"the heads' config.json has no {error}") from None
    except (TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise ConfigurationError(f"the heads' config.json is invalid: {error}") from None


def _load_eagle(checkpoint: HeadCheckpoint, target: StepModel) -> EagleModel:
    """Features are final hidden states; embeddings and LM head are the target's."""
    plans = eagle_plans(checkpoint.fields, checkpoint.tensor_names)
    (layer,) = checkpoint.load(plans.all, target)
    return EagleModel("eagle", (), target, layer)


def _load_eagle3(checkpoint: HeadCheckpoint, target: StepModel) -> EagleModel:
    """Features are computed from three layers' outputs. The head has its own LM head, over a
    vocabulary of frequent tokens."""
    layers = _kept_layers(checkpoint.fields, target.plan.num_layers)
    plans = eagle3_plans(checkpoint.fields, checkpoint.tensor_names, num_target_layers=len(layers))
    token_ids = _token_ids(checkpoint)
    features, layer, logits = checkpoint.load(plans.all, target)
    return EagleModel(
        "eagle3",
        layers,
        target,
        layer,
        RowModel(features),
        RowModel(logits),
        token_ids.to(target.device),
    )


def _token_ids(checkpoint: HeadCheckpoint) -> Tensor:
    """The token id of each id of the draft vocabulary: `d2t` holds the differences."""
    vocab_size = checkpoint.fields.size("vocab_size")
    count = draft_vocab_size(checkpoint.fields)
    token_ids = torch.arange(count)
    offsets = checkpoint.tensor("d2t")
    if offsets is None and count != vocab_size:
        raise ConfigurationError("the heads have their own vocabulary, but no d2t tensor for it")
    if offsets is not None:
        if offsets.shape != token_ids.shape:
            raise ConfigurationError(
                f"the heads do not fit the model: d2t is {list(offsets.shape)}, should be [{count}]"
            )
        token_ids = token_ids + offsets
    if token_ids.min() < 0 or token_ids.max() >= vocab_size:
        raise ConfigurationError(
            f"the heads' d2t names tokens outside the vocabulary of {vocab_size}"
        )
    return token_ids


def _kept_layers(fields: ConfigFields, num_layers: int) -> tuple[int, ...]:
    """The layers whose outputs the head was trained on.

    By convention these are the inputs of layers 2, n // 2 and n - 3, that is, the outputs of the
    layers before them. `eagle_config` may name other layers by their outputs.
    """
    layers = tuple(named_target_layers(fields) or (1, num_layers // 2 - 1, num_layers - 4))
    try:
        check_kept_layers(layers, num_layers)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"the heads do not fit the model: {error}") from None
    return layers
