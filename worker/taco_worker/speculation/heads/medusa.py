"""The Medusa drafter: each head predicts one of the next tokens from the last hidden state.

Cai et al. 2024, "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from taco_kernels.native.draft_trees import DraftTrees
from taco_proto.config import DEFAULT_HEAD_TOKENS
from taco_proto.errors import ConfigurationError
from taco_proto.steps import IntArray, JoinedSequences
from taco_worker.models.step_model import StepModel
from taco_worker.speculation.drafter import ComputedTokens, FloatArray, no_drafts
from taco_worker.speculation.heads.head_checkpoint import HeadCheckpoint
from taco_worker.speculation.heads.medusa_recipe import medusa_plans
from taco_worker.speculation.heads.observed_tokens import ObservedTokens
from taco_worker.speculation.heads.row_model import RowModel
from taco_worker.speculation.heads.tree_shapes import likeliest_shapes

# Roughly the paper's figures for Vicuna: how often a head's most likely token is right, how fast
# that falls from head to head, and the rates of the lower ranks relative to the first.
_FIRST_CHANCE = 0.6
_DEPTH_FACTOR = 0.85
_RANK_FACTORS = (1.0, 0.22, 0.1, 0.06, 0.04, 0.03, 0.025, 0.02)


@dataclass(frozen=True, slots=True)
class MedusaHead:
    """A head, and whose LM head turns its output into logits."""

    model: RowModel
    target: StepModel

    def logits(self, hidden: Tensor) -> Tensor:
        """The target's hidden states to float32 [num_rows, vocab_size]."""
        if self.model.model.plan.logits:
            return self.model.logits(hidden)
        return self.target.compute_logits(self.model(hidden))


def load_medusa(checkpoint: HeadCheckpoint, target: StepModel) -> list[MedusaHead]:
    """Load the heads of a checkpoint; see `medusa_plans`.

    Raises:
        ConfigurationError: the config is invalid, or tensors are missing or do not fit the target.
    """
    size, vocab_size = target.plan.hidden_size, target.plan.vocab_size
    try:
        plans = medusa_plans(
            checkpoint.fields, checkpoint.tensor_names, hidden_size=size, vocab_size=vocab_size
        )
    except ValueError as error:
        raise ConfigurationError(f"the heads' config.json is invalid: {error}") from None
    return [MedusaHead(RowModel(model), target) for model in checkpoint.load(plans, target)]


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
        self._shapes = likeliest_shapes(chances, num_draft_tokens or DEFAULT_HEAD_TOKENS)
        self.max_draft_tokens = len(self._shapes) - 1
        self.priors: FloatArray = chances.ravel()
        self._heads = heads
        self._num_ranks = num_ranks
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
        logits = [head.logits(hidden) for head in self._heads[:num_heads]]
        likeliest = torch.stack([rows.topk(self._num_ranks).indices for rows in logits], dim=1)
        token_ids: IntArray = likeliest.int().cpu().numpy()
        return token_ids
