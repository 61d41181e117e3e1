"""The EAGLE drafter: grows a draft tree from the target's last feature."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from taco_kernels.native.draft_trees import DraftTrees
from taco_proto.steps import IntArray, JoinedSequences
from taco_worker.models.step_model import StepModel
from taco_worker.speculation.drafter import ComputedTokens, FloatArray, no_drafts
from taco_worker.speculation.heads.draft_tree import NUM_CLASSES, GrowingTrees
from taco_worker.speculation.heads.eagle_models import EagleModel
from taco_worker.speculation.heads.observed_tokens import ObservedTokens
from taco_worker.speculation.heads.slot_kv import SlotKV
from taco_worker.speculation.heads.tree_levels import Context, TreeLevels, upload

_DEFAULT_DRAFTS = 16
MAX_DEPTH = 6
# Nodes per level that get children, and children of each: EAGLE-2 uses 10 for trees of 60 nodes.
_MAX_WIDTH = 10
_NODES_PER_WIDTH = 4
# Maximum bytes of the KV copies that attention reads; more rows are processed in groups.
_MAX_COPY_BYTES = 256 * 2**20


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
        self.max_draft_tokens = num_draft_tokens or _DEFAULT_DRAFTS
        middles = (np.arange(NUM_CLASSES) + 0.5) / NUM_CLASSES
        self.priors: FloatArray = middles.astype(np.float32)
        self._width = 1
        if target.max_tree_paths:
            self._width = min(_MAX_WIDTH, max(1, self.max_draft_tokens // _NODES_PER_WIDTH))
        self._model = model
        self._target = target
        self._observed = ObservedTokens(max_num_seqs)
        config = model.layer.config
        self._kv = SlotKV(
            max_num_seqs,
            max_model_len,
            num_kv_heads=config.heads.num_kv_heads,
            head_dim=config.heads.head_dim,
            dtype=target.hidden_dtype,
            device=target.device,
        )
        self._last_outputs = torch.zeros(
            (max_num_seqs, config.hidden_size), dtype=target.hidden_dtype, device=target.device
        )
        self.kv_bytes_per_token = self._kv.bytes_per_token
        # Two copies: attention may repeat one for all query heads that share a KV head.
        copies = 2 + config.heads.num_heads // config.heads.num_kv_heads
        longest = max_model_len * self._kv.bytes_per_token
        self.fixed_kv_bytes = self._kv.padding_bytes + copies * min(
            max(_MAX_COPY_BYTES, longest), max_num_seqs * longest
        )

    def reserve_kv(self, num_tokens: int) -> None:
        self._kv.reserve(num_tokens)

    def clear(self) -> None:
        self._kv.clear()

    def leave(self, slots: IntArray) -> None:
        self._kv.release(slots)

    def join(self, joined: JoinedSequences) -> None:
        self._observed.join(joined)
        self._kv.release(joined.slots)

    def append(self, slots: IntArray, num_tokens: IntArray, token_ids: IntArray) -> None:
        self._observed.append(slots, num_tokens)

    @torch.inference_mode()
    def observe(self, computed: ComputedTokens) -> None:
        slots, counts = computed.slots, computed.num_tokens
        self._observed.observe(computed)
        ends = np.cumsum(counts)
        positions = np.arange(int(ends[-1])) + np.repeat(computed.positions - ends + counts, counts)
        target, layer = self._target, self._model.layer
        features = self._model.features(computed.hidden.to(target.hidden_dtype))
        embedded = target.embed(upload(computed.next_token_ids, target))
        mixed, residual = self._model.mix(embedded, features)
        keys, values = layer.keys_values(mixed, upload(positions, target))
        self._kv.write(slots, computed.positions, counts, keys, values)

        last = upload(ends - 1, target)
        queries = layer.queries(mixed[last], upload(positions[ends - 1], target))
        attended = torch.cat([self._attend(queries, slots, part) for part in self._groups(slots)])
        self._last_outputs[upload(slots, target)] = layer.finish(residual[last], attended)

    def _attend(self, queries: Tensor, slots: IntArray, part: slice) -> Tensor:
        """Attention of some rows over all tokens of their slots."""
        context = self._context(slots[part], room=0)
        return self._model.layer.attend(
            queries[part, None], context.keys, context.values, context.is_seen[:, None]
        )

    def _groups(self, slots: IntArray) -> list[slice]:
        return self._kv.groups(slots, _MAX_COPY_BYTES)

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
        parts = [
            self._grow(slots[rows[part]], sizes[rows[part]]) for part in self._groups(slots[rows])
        ]
        num_nodes = np.zeros(slots.size, dtype=np.int32)
        num_nodes[rows] = np.concatenate([part.num_nodes for part in parts])
        return DraftTrees(
            num_nodes,
            np.concatenate([part.token_ids for part in parts]),
            np.concatenate([part.parents for part in parts]),
            np.concatenate([part.classes for part in parts]),
        )

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
                room = num_levels * expansion.token_ids.shape[1]
                levels = TreeLevels(self._model, self._target, self._context(slots, room))
            outputs = levels.run(expansion, outputs)
            expansion = trees.grow(*self._likeliest(outputs))
        return trees.finish()

    def _context(self, slots: IntArray, room: int) -> Context:
        keys, values = self._kv.read(slots, room)
        places = np.arange(keys.shape[1])
        is_seen = torch.from_numpy(places < self._kv.num_tokens[slots][:, None])
        return Context(
            upload(self._observed.num_observed[slots], self._target),
            keys,
            values,
            is_seen.to(keys.device),
            room,
        )

    def _likeliest(self, outputs: Tensor) -> tuple[IntArray, FloatArray]:
        """The most likely next tokens of each output and their log probabilities;
        [num_rows, num_outputs, width]."""
        logits = self._model.logits(outputs.flatten(0, 1))
        best = logits.topk(min(self._width, logits.shape[1]))
        chances = (best.values - logits.logsumexp(-1, keepdim=True)).clamp(max=0.0)
        token_ids = self._model.target_ids(best.indices).int()
        shape = (*outputs.shape[:2], -1)
        return token_ids.cpu().numpy().reshape(shape), chances.cpu().numpy().reshape(shape)
