"""A drafter that knows how sequences continue, and is sometimes wrong on purpose."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np

from taco_kernels.native.draft_trees import DraftTrees
from taco_proto.steps import EMPTY, IntArray, JoinedSequences
from taco_worker.speculation.drafter import ComputedTokens

MAX_DEPTH = 4
MAX_DRAFT_TOKENS = 9


class KnowingDrafter:
    """Drafts what plain decoding gave, by prompt; trees with wrong nodes at every depth.

    Attributes:
        accepts: of the next drafts, the chance of each node on the true path to be there.
    """

    name = "knowing"
    needs_history = True
    max_draft_tokens = MAX_DRAFT_TOKENS
    priors = np.full(1, 0.5, dtype=np.float32)
    hidden_layers: tuple[int, ...] | None = None

    def __init__(
        self, truth: Mapping[tuple[int, ...], list[list[int]]], *, branches: bool, seed: int = 0
    ) -> None:
        """`truth` has, by prompt, the answers that sequences with it give."""
        self._truth = truth
        self._branches = branches
        self._random = random.Random(seed)
        self._tokens: dict[int, list[int]] = {}
        self._prompts: dict[int, tuple[int, ...]] = {}

    def clear(self) -> None:
        self._tokens.clear()

    def leave(self, slots: IntArray) -> None:
        for slot in slots.tolist():
            del self._tokens[slot]

    def join(self, joined: JoinedSequences) -> None:
        ends = np.cumsum(joined.num_tokens)
        for row, slot in enumerate(joined.slots.tolist()):
            assert slot not in self._tokens
            tokens = joined.token_ids[ends[row] - joined.num_tokens[row] : ends[row]].tolist()
            num_prompt = int(joined.num_prompt_tokens[row])
            self._prompts[slot] = tuple(tokens[:num_prompt])
            self._tokens[slot] = tokens[num_prompt:]

    def append(self, slots: IntArray, num_tokens: IntArray, token_ids: IntArray) -> None:
        ends = np.cumsum(num_tokens)
        for slot, count, end in zip(
            slots.tolist(), num_tokens.tolist(), ends.tolist(), strict=True
        ):
            self._tokens[slot] += token_ids[end - count : end].tolist()

    def observe(self, computed: ComputedTokens) -> None:
        raise AssertionError("it asks for no hidden states")

    def record_verified(
        self, slots: IntArray, num_drafts: IntArray, num_accepted: IntArray
    ) -> None:
        assert (num_accepted >= 0).all()
        assert (num_accepted <= num_drafts).all()

    def draft(self, slots: IntArray, max_nodes: IntArray) -> DraftTrees:
        rows = [
            self._tree(slot, budget)
            for slot, budget in zip(slots.tolist(), max_nodes.tolist(), strict=True)
        ]
        nodes = [node for row in rows for node in row]
        return DraftTrees(
            np.array([len(row) for row in rows], dtype=np.int32),
            np.array([token for token, _ in nodes], dtype=np.int32),
            np.array([parent for _, parent in nodes], dtype=np.int32),
            np.zeros(len(nodes), dtype=np.int32) if nodes else EMPTY,
        )

    def _tree(self, slot: int, budget: int) -> list[tuple[int, int]]:
        """(token, parent) of each node, depth first."""
        rest = self._rest(slot)
        nodes: list[tuple[int, int]] = []

        def grow(parent: int, depth: int, is_true: bool) -> None:
            if depth == MAX_DEPTH:
                return
            children = [(self._random.randrange(3, 300), False)]
            if is_true and depth < len(rest) and self._random.random() < 0.8:
                children.append((rest[depth], True))
                self._random.shuffle(children)
            if not self._branches:
                children = children[-1:]
            for token, child_is_true in children:
                if len(nodes) < budget:
                    nodes.append((token, parent))
                    grow(len(nodes) - 1, depth + 1, child_is_true)

        grow(-1, 0, True)
        return nodes

    def _rest(self, slot: int) -> list[int]:
        so_far = self._tokens[slot]
        for answer in self._truth.get(self._prompts[slot], []):
            if answer[: len(so_far)] == so_far:
                return answer[len(so_far) :]
        return []
