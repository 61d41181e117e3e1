"""The EAGLE drafter: grows a draft tree from the target's last feature."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from taco_kernels.native.draft_trees import DraftTrees
from taco_proto.config import DEFAULT_HEAD_TOKENS
from taco_proto.steps import IntArray, JoinedSequences
from taco_worker.models.step_model import ModelInput, StepModel
from taco_worker.speculation.drafter import ComputedTokens, FloatArray, no_drafts
from taco_worker.speculation.heads.draft_tree import NUM_CLASSES, GrowingTrees
from taco_worker.speculation.heads.eagle_models import EagleModel
from taco_worker.speculation.heads.observed_tokens import ObservedTokens
from taco_worker.speculation.heads.slot_blocks import BLOCK_SIZE, SlotBlocks
from taco_worker.speculation.heads.tree_levels import TAIL_BLOCKS, TreeLevels, TreeRoots, upload

MAX_DEPTH = 6
# Nodes per level that get children, and children of each: EAGLE-2 uses 10 for trees of 60 nodes.
_MAX_WIDTH = 10
_NODES_PER_WIDTH = 4


class EagleDrafter:
    """A `Drafter` with one decoder layer, which keeps KV for the kept tokens.

    Position i of the layer holds the pair of token i + 1 and the feature of token i. Of the pairs
    that the target has computed, only the last one's output is needed; the others only provide keys
    and values.
    """

    def __init__(
        self,
        model: EagleModel,
        target: StepModel,
        *,
        max_num_seqs: int,
        max_model_len: int,
        num_draft_tokens: int | None = None,
    ) -> None:
        self.name = model.name
        self.needs_history = False
        self.hidden_layers: tuple[int, ...] | None = model.hidden_layers
        self.max_draft_tokens = num_draft_tokens or DEFAULT_HEAD_TOKENS
        middles = (np.arange(NUM_CLASSES) + 0.5) / NUM_CLASSES
        self.priors: FloatArray = middles.astype(np.float32)
        self._width = 1
        if target.max_tree_paths:
            self._width = min(_MAX_WIDTH, max(1, self.max_draft_tokens // _NODES_PER_WIDTH))
        self._model = model
        self._target = target
        self._observed = ObservedTokens(max_num_seqs)
        self._num_positions = max_model_len + MAX_DEPTH
        self._blocks = SlotBlocks(max_num_seqs, max_model_len, self._allocate)
        self._last_outputs = torch.zeros(
            (max_num_seqs, target.plan.hidden_size), dtype=target.hidden_dtype, device=target.device
        )
        block_bytes = model.layer.kv_block_bytes(BLOCK_SIZE)
        self.kv_bytes_per_token = block_bytes // BLOCK_SIZE
        # The unused end of a slot's last block, and the blocks of its tree.
        self._num_fixed_blocks = max_num_seqs * (1 + TAIL_BLOCKS * self._width)
        self.fixed_kv_bytes = self._num_fixed_blocks * block_bytes

    def reserve_kv(self, num_tokens: int) -> None:
        self._blocks.reset(-(-num_tokens // BLOCK_SIZE) + self._num_fixed_blocks)

    def _allocate(self, num_blocks: int, keeps: bool) -> None:
        """Allocate the layer's KV; see `SlotBlocks`."""
        layer = self._model.layer
        kept = layer.kv_rows.clone() if keeps else None
        layer.allocate_kv(num_blocks, BLOCK_SIZE, self._num_positions)
        if kept is not None:
            layer.kv_rows[: kept.shape[0]] = kept

    def clear(self) -> None:
        self._blocks.clear()

    def leave(self, slots: IntArray) -> None:
        self._blocks.release(slots)

    def join(self, joined: JoinedSequences) -> None:
        self._observed.join(joined)
        self._blocks.release(joined.slots)

    def append(self, slots: IntArray, num_tokens: IntArray, token_ids: IntArray) -> None:
        self._observed.append(slots, num_tokens)

    @torch.inference_mode()
    def observe(self, computed: ComputedTokens) -> None:
        slots, counts = computed.slots, computed.num_tokens
        self._observed.observe(computed)
        ends = np.cumsum(counts)
        positions = np.arange(int(ends[-1])) + np.repeat(computed.positions - ends + counts, counts)
        features = self._model.features(computed.hidden)
        embedded = self._target.embed(upload(computed.next_token_ids, self._target))
        self._blocks.extend(slots, computed.positions, counts)
        seq_lens = self._blocks.num_tokens[slots]
        outputs = self._model.layer.forward(
            ModelInput(
                token_ids=torch.zeros(positions.size, dtype=torch.int32, device=features.device),
                positions=positions.astype(np.int32),
                query_start=np.append(0, ends).astype(np.int32),
                seq_lens=seq_lens,
                block_tables=np.ascontiguousarray(
                    self._blocks.tables[slots, : -(-int(seq_lens.max()) // BLOCK_SIZE)]
                ),
                output_rows=(ends - 1).astype(np.int32),
                columns=torch.cat([embedded, features], dim=1),
            )
        )
        self._last_outputs[upload(slots, self._target)] = outputs

    def record_verified(
        self, slots: IntArray, num_drafts: IntArray, num_accepted: IntArray
    ) -> None:
        """Nothing: the head does not learn while serving."""

    @torch.inference_mode()
    def draft(self, slots: IntArray, max_nodes: IntArray) -> DraftTrees:
        sizes = np.minimum(max_nodes, self.max_draft_tokens) * self._observed.is_ready(slots)
        rows = np.flatnonzero(sizes > 0)
        if not rows.size:
            return no_drafts(slots.size)
        trees = self._grow(slots[rows], sizes[rows])
        num_nodes = np.zeros(slots.size, dtype=np.int32)
        num_nodes[rows] = trees.num_nodes
        return replace(trees, num_nodes=num_nodes)

    def _grow(self, slots: IntArray, sizes: IntArray) -> DraftTrees:
        trees = GrowingTrees(sizes, self._width)
        outputs = self._last_outputs[upload(slots, self._target)][:, None]
        expansion = trees.grow(*self._likeliest(outputs))
        num_levels = min(MAX_DEPTH, int(sizes.max())) - 1
        levels: TreeLevels | None = None
        for _ in range(num_levels):
            if expansion is None:
                break
            if levels is None:
                roots = TreeRoots(slots, self._observed.num_observed[slots])
                layer = self._model.layer
                levels = TreeLevels(layer, self._target, self._blocks, roots, self._width)
            outputs = levels.run(expansion, outputs)
            expansion = trees.grow(*self._likeliest(outputs))
        if levels is not None:
            levels.close()
        return trees.finish()

    def _likeliest(self, outputs: Tensor) -> tuple[IntArray, FloatArray]:
        """The most likely next tokens of each output and their log probabilities;
        [num_rows, num_outputs, width]."""
        logits = self._model.logits(outputs.flatten(0, 1))
        best = logits.topk(min(self._width, logits.shape[1]))
        chances = (best.values - logits.logsumexp(-1, keepdim=True)).clamp(max=0.0)
        token_ids = self._model.target_ids(best.indices).int()
        shape = (*outputs.shape[:2], -1)
        return token_ids.cpu().numpy().reshape(shape), chances.cpu().numpy().reshape(shape)
