"""The networks of EAGLE and EAGLE 3: the input of their layer, and logits from its output.

Li et al. 2024, "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty", and 2025,
"EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from taco_proto.errors import ConfigurationError
from taco_worker.models.step_model import StepModel, check_kept_layers
from taco_worker.speculation.heads.draft_config import DraftConfig, read_draft_config
from taco_worker.speculation.heads.draft_layer import DraftLayer, load_norm
from taco_worker.speculation.heads.head_checkpoint import HeadTensors

# Unused tensors: buffers of old checkpoints, and copies of the target's tensors.
_NOT_NEEDED = ("embed_tokens.weight", "lm_head.weight", "layers.0.self_attn.rotary_emb.inv_freq")


class EagleModel(Protocol):
    """A head that computes the next feature from a token and the feature before it.

    Attributes:
        name: the drafter's name.
        hidden_layers: the target's layers from which features are computed.
    """

    name: str
    hidden_layers: tuple[int, ...]
    layer: DraftLayer

    def features(self, hidden: Tensor) -> Tensor:
        """The target's hidden states to features, [num_rows, hidden_size]."""
        ...

    def mix(self, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Combine token embeddings with the features before them: returns the input of the
        attention, and the residual."""
        ...

    def logits(self, outputs: Tensor) -> Tensor:
        """The layer's outputs (features of drafts) to [num_rows, draft vocabulary]."""
        ...

    def target_ids(self, token_ids: Tensor) -> Tensor:
        """Ids of the draft vocabulary to token ids."""
        ...


def load_eagle(
    hf_config: Mapping[str, Any], tensors: HeadTensors, target: StepModel, *, num_positions: int
) -> EagleModel:
    """Load the head of a checkpoint.

    Args:
        num_positions: the positions that drafts may reach.

    Raises:
        ConfigurationError: the config lacks a field, tensors are missing, or the head is for
            another target.
    """
    config = read_draft_config(hf_config)
    for what in ("hidden_size", "vocab_size"):
        own, wanted = getattr(config, what), getattr(target.plan, what)
        if own != wanted:
            raise ConfigurationError(
                f"the heads do not fit the model: their {what} is {own}, the model's is {wanted}"
            )
    if target.plan.embedding_size != target.plan.hidden_size:
        raise ConfigurationError("EAGLE needs embeddings as wide as the model's hidden states")
    model: EagleModel
    if is_eagle3(hf_config):
        model = Eagle3(hf_config, config, tensors, target, num_positions)
    else:
        model = Eagle1(config, tensors, target, num_positions)
    tensors.drop(_NOT_NEEDED)
    tensors.check_all_taken()
    return model


def is_eagle3(hf_config: Mapping[str, Any]) -> bool:
    names = " ".join(hf_config.get("architectures") or []).lower()
    return "draft_vocab_size" in hf_config or "eagle3" in names


class Eagle1:
    """Features are final hidden states; embeddings and LM head are the target's."""

    name = "eagle"
    hidden_layers: tuple[int, ...] = ()

    def __init__(
        self, config: DraftConfig, tensors: HeadTensors, target: StepModel, num_positions: int
    ) -> None:
        """Raises ConfigurationError if tensors are missing or do not fit."""
        size = config.hidden_size
        self._fc = target.linear(
            tensors.take("fc.weight", size, 2 * size), tensors.take_if_there("fc.bias", size)
        )
        self.layer = DraftLayer(
            tensors, "layers.0.", config, target, input_size=size, num_positions=num_positions
        )
        self._target = target

    def features(self, hidden: Tensor) -> Tensor:
        return hidden

    def mix(self, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        mixed = self._fc(torch.cat([embedded, features], dim=-1))
        return mixed, mixed

    def logits(self, outputs: Tensor) -> Tensor:
        return self._target.compute_logits(outputs)

    def target_ids(self, token_ids: Tensor) -> Tensor:
        return token_ids


class Eagle3:
    """Features are computed from three layers' outputs. The head has its own LM head, over a
    vocabulary of frequent tokens."""

    name = "eagle3"

    def __init__(
        self,
        hf_config: Mapping[str, Any],
        config: DraftConfig,
        tensors: HeadTensors,
        target: StepModel,
        num_positions: int,
    ) -> None:
        """Raises ConfigurationError if tensors are missing or do not fit."""
        size, vocab_size = config.hidden_size, config.vocab_size
        draft_vocab_size = hf_config.get("draft_vocab_size") or vocab_size
        self.hidden_layers = _eagle3_layers(hf_config, target.plan.num_layers)
        self._fc = target.linear(tensors.take("fc.weight", size, len(self.hidden_layers) * size))
        self.layer = DraftLayer(
            tensors, "midlayer.", config, target, input_size=2 * size, num_positions=num_positions
        )
        self._token_norm = load_norm("midlayer.input_layernorm", tensors, config, target)
        self._hidden_norm = load_norm("midlayer.hidden_norm", tensors, config, target)
        self._final_norm = load_norm("norm", tensors, config, target)
        self._lm_head = target.linear(tensors.take("lm_head.weight", draft_vocab_size, size))
        offsets = tensors.take_if_there("d2t", draft_vocab_size)
        tensors.take_if_there("t2d", vocab_size)  # the inverse of d2t, not needed
        if offsets is None and draft_vocab_size != vocab_size:
            raise ConfigurationError(
                "the heads have their own vocabulary, but no d2t tensor for it"
            )
        self._token_ids = torch.arange(draft_vocab_size)
        if offsets is not None:
            self._token_ids = self._token_ids + offsets
        if self._token_ids.min() < 0 or self._token_ids.max() >= vocab_size:
            raise ConfigurationError(
                f"the heads' d2t names tokens outside the vocabulary of {vocab_size}"
            )
        self._token_ids = self._token_ids.to(target.device)

    def features(self, hidden: Tensor) -> Tensor:
        return self._fc(hidden)

    def mix(self, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        normed = (self._token_norm(embedded), self._hidden_norm(features))
        return torch.cat(normed, dim=-1), features

    def logits(self, outputs: Tensor) -> Tensor:
        return self._lm_head(self._final_norm(outputs)).float()

    def target_ids(self, token_ids: Tensor) -> Tensor:
        return self._token_ids[token_ids]


def _eagle3_layers(hf_config: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """The layers whose outputs the head was trained on.

    By convention these are the inputs of layers 2, n // 2 and n - 3, that is, the outputs of the
    layers before them. `eagle_config` may name other layers by their outputs (as SGLang reads it).
    """
    named = (hf_config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    layers = tuple(named or (1, num_layers // 2 - 1, num_layers - 4))
    try:
        check_kept_layers(layers, num_layers)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"the heads do not fit the model: {error}") from None
    return layers
