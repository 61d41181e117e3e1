"""The Medusa drafter: each head predicts one of the next tokens from the last hidden state.

Cai et al. 2024, "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from taco_kernels.native.draft_trees import DraftTrees
from taco_proto.errors import ConfigurationError
from taco_proto.steps import IntArray, JoinedSequences
from taco_worker.models.step_model import Linear, StepModel
from taco_worker.speculation.drafter import ComputedTokens, FloatArray, no_drafts
from taco_worker.speculation.heads.head_checkpoint import HeadTensors
from taco_worker.speculation.heads.observed_tokens import ObservedTokens
from taco_worker.speculation.heads.tree_shapes import likeliest_shapes

_DEFAULT_DRAFTS = 16
# Roughly the paper's figures for Vicuna: how often a head's most likely token is right, how fast
# that falls from head to head, and the rates of the lower ranks relative to the first.
_FIRST_CHANCE = 0.6
_DEPTH_FACTOR = 0.85
_RANK_FACTORS = (1.0, 0.22, 0.1, 0.06, 0.04, 0.03, 0.025, 0.02)
_HEAD_NUMBER = re.compile(r"(\d+)\.")


@dataclass(frozen=True, slots=True)
class MedusaHead:
    """Residual blocks, x + silu(W x + b), followed by an LM head.

    Attributes:
        lm_head: None means the target's.
    """

    blocks: tuple[Linear, ...]
    lm_head: Linear | None

    def __call__(self, hidden: Tensor) -> Tensor:
        for block in self.blocks:
            hidden = hidden + F.silu(block(hidden))
        return hidden


def load_medusa(
    config: Mapping[str, Any], tensors: HeadTensors, target: StepModel
) -> list[MedusaHead]:
    """Load the heads of a checkpoint. Their tensors are named `0.0.linear.weight`, or the same
    with the prefix `medusa_head.` among the base model's tensors.

    The tensors determine the number of heads: published configs may name fewer. With
    `original_lm_head` in its config, a checkpoint has no LM heads.

    Raises:
        ConfigurationError: tensors are missing, or do not fit the target.
    """
    tensors = tensors.under("medusa_head.")
    numbers = {int(match[1]) for name in tensors.names if (match := _HEAD_NUMBER.match(name))}
    num_layers = config.get("medusa_num_layers", 1)
    if not isinstance(num_layers, int) or num_layers < 0:
        raise ConfigurationError(f"medusa_num_layers must be a number, not {num_layers!r}")
    size, vocab_size = target.plan.hidden_size, target.plan.vocab_size

    def block(name: str) -> Linear:
        weight = tensors.take(f"{name}.linear.weight", size, size)
        return target.linear(weight, tensors.take(f"{name}.linear.bias", size))

    def head(number: int) -> MedusaHead:
        blocks = tuple(block(f"{number}.{layer}") for layer in range(num_layers))
        if config.get("original_lm_head"):
            return MedusaHead(blocks, None)
        weight = tensors.take(f"{number}.{num_layers}.weight", vocab_size, size)
        return MedusaHead(blocks, target.linear(weight))

    heads = [head(number) for number in range(max(numbers, default=0) + 1)]
    tensors.check_all_taken()
    return heads


class MedusaDrafter:
    """A `Drafter`. Head d's candidates are at depth d of every tree, independent of their parents:
    a tree's shape depends only on its number of nodes."""

    name = "medusa"
    needs_history = False
    hidden_layers: tuple[int, ...] | None = ()

    def __init__(
        self,
        heads: Sequence[MedusaHead],
        target: StepModel,
        *,
        max_num_seqs: int,
        num_draft_tokens: int | None = None,
    ) -> None:
        num_ranks = len(_RANK_FACTORS) if target.max_tree_paths else 1
        chances = _FIRST_CHANCE * _DEPTH_FACTOR ** np.arange(len(heads), dtype=np.float32)
        chances = np.outer(chances, np.array(_RANK_FACTORS[:num_ranks], np.float32))
        self._shapes = likeliest_shapes(chances, num_draft_tokens or _DEFAULT_DRAFTS)
        self.max_draft_tokens = len(self._shapes) - 1
        self.priors: FloatArray = chances.ravel()
        self._heads = heads
        self._num_ranks = num_ranks
        self._target = target
        self._observed = ObservedTokens(max_num_seqs)
        self._last_hidden = torch.zeros(
            (max_num_seqs, target.plan.hidden_size),
            dtype=target.hidden_dtype,
            device=target.device,
        )

    def clear(self) -> None:
        """Nothing: joining sequences replace all state."""

    def leave(self, slots: IntArray) -> None:
        """Nothing, as `clear`."""

    def join(self, joined: JoinedSequences) -> None:
        self._observed.join(joined)

    def append(self, slots: IntArray, num_tokens: IntArray, token_ids: IntArray) -> None:
        self._observed.append(slots, num_tokens)

    @torch.inference_mode()
    def observe(self, computed: ComputedTokens) -> None:
        self._observed.observe(computed)
        last = torch.from_numpy(np.cumsum(computed.num_tokens) - 1)
        device = self._last_hidden.device
        slots = torch.from_numpy(computed.slots).long().to(device)
        self._last_hidden[slots] = computed.hidden[last.to(device)].to(self._last_hidden.dtype)

    def record_verified(
        self, slots: IntArray, num_drafts: IntArray, num_accepted: IntArray
    ) -> None:
        """Nothing: the heads do not learn while serving."""

    @torch.inference_mode()
    def draft(self, slots: IntArray, max_nodes: IntArray) -> DraftTrees:
        sizes = np.minimum(max_nodes, self.max_draft_tokens) * self._observed.is_ready(slots)
        rows = np.flatnonzero(sizes > 0)
        if not rows.size:
            return no_drafts(slots.size)
        shapes = [self._shapes[size] for size in sizes[rows].tolist()]
        depths = np.concatenate([shape.depths for shape in shapes])
        ranks = np.concatenate([shape.ranks for shape in shapes])
        candidates = self._candidates(slots[rows], int(depths.max()) + 1)
        tree_rows = np.repeat(np.arange(rows.size), sizes[rows])
        return DraftTrees(
            num_nodes=sizes.astype(np.int32),
            token_ids=candidates[tree_rows, depths, ranks],
            parents=np.concatenate([shape.parents for shape in shapes]),
            classes=depths * np.int32(self._num_ranks) + ranks,
        )

    def _candidates(self, slots: IntArray, num_heads: int) -> IntArray:
        """Each head's most likely tokens, int32 [num_rows, num_heads, num_ranks]."""
        hidden = self._last_hidden[torch.from_numpy(slots).long().to(self._last_hidden.device)]
        guesses = [head(hidden) for head in self._heads[:num_heads]]
        logits = [
            self._target.compute_logits(guess) if head.lm_head is None else head.lm_head(guess)
            for head, guess in zip(self._heads, guesses, strict=False)
        ]
        likeliest = torch.stack([rows.topk(self._num_ranks).indices for rows in logits], dim=1)
        token_ids: IntArray = likeliest.int().cpu().numpy()
        return token_ids
