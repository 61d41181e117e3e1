"""Drafts of grammars: the tokens that they force, and other drafts without those they refuse."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from taco_kernels.native.draft_trees import DraftTrees
from taco_proto.steps import EMPTY, IntArray
from taco_worker.batch.input_batch import StepRows
from taco_worker.grammars.forced_tokens import allowed_nodes, forced_tokens
from taco_worker.grammars.row_masks import Draft
from taco_worker.grammars.slot_matchers import SlotMatchers
from taco_worker.sampling.slot_params import Array
from taco_worker.speculation.drafter import chains
from taco_worker.step_metrics import StepMetrics


class GrammarDrafter:
    """Drafts for the sequences with a grammar, with speculative decoding or without.

    Where the grammar allows one token, that token needs no drafter. It is verified like any draft,
    so it only saves steps: the masks of its rows allow it alone.
    """

    def __init__(
        self,
        matchers: SlotMatchers,
        metrics: StepMetrics,
        *,
        max_tokens: int,
        max_rows: int,
        end_tokens: Collection[int],
        knows_tokens: bool,
    ) -> None:
        """
        Args:
            metrics: counts the forced tokens.
            max_tokens: forced tokens of a sequence in a step.
            max_rows: tokens that a step samples at most, forced ones included. The memory of a step
                is made for this number.
            knows_tokens: the host has all tokens when a step begins. Otherwise the device may still
                be sampling. The chain then starts behind the tokens in flight, which are forced
                as well, because the masks that allowed them were made here.
        """
        self._matchers = matchers
        self._metrics = metrics
        self._max_tokens = max_tokens
        self._max_rows = max_rows
        self._end_tokens = end_tokens
        self._knows_tokens = knows_tokens

    def draft(self, rows: StepRows) -> StepRows:
        """Add the forced tokens to the rows of a step that has no other drafts."""
        if not self._matchers:
            return rows
        may = np.flatnonzero(rows.max_drafts > 0)
        found = self.forced(rows, may)
        if not found:
            return rows
        parts = [EMPTY] * rows.slots.size
        for index, chain in found.items():
            parts[may[index]] = np.array(chain, dtype=np.int32)
        return rows.with_drafts(chains(parts, [np.zeros_like(part) for part in parts]), forced=True)

    def forced(self, rows: StepRows, may: Array) -> dict[int, list[int]]:
        """The forced tokens of some rows, by their index in `may`; rows without any are left out.

        Args:
            may: the rows with `max_drafts` above 0.
        """
        if not may.size or not self._max_tokens:
            return {}
        found: dict[int, list[int]] = {}
        limits = np.minimum(rows.max_drafts[may], self._max_tokens).tolist()
        for each in self._matchers.find(rows.slots[may], reads=self._knows_tokens):
            num_tokens = each.num_unread + limits[each.index]
            chain = forced_tokens(each.matcher, num_tokens, self._end_tokens)
            if len(chain) > each.num_unread:
                found[each.index] = chain[each.num_unread :]
        num_spare = self._max_rows - int(np.count_nonzero(rows.is_sampled))
        if sum(map(len, found.values())) > num_spare:
            share = max(0, num_spare) // len(found)
            found = {index: chain[:share] for index, chain in found.items() if share}
        self._metrics.num_forced += sum(map(len, found.values()))
        return found

    def without_refused(self, trees: DraftTrees, slots: IntArray) -> DraftTrees:
        """Remove the drafts that grammars refuse, and those behind them.

        Args:
            trees: one for each of `slots`, whose tokens the host has.
        """
        if not trees.token_ids.size:
            return trees
        is_kept = np.ones(trees.token_ids.size, dtype=np.bool_)
        ends = np.cumsum(trees.num_nodes)
        for each in self._matchers.find(slots, reads=True):
            end = int(ends[each.index])
            nodes = slice(end - int(trees.num_nodes[each.index]), end)
            draft = Draft(trees.token_ids[nodes].tolist(), trees.parents[nodes].tolist())
            is_kept[nodes] = allowed_nodes(each.matcher, draft, self._end_tokens)
        return trees if is_kept.all() else _selected(trees, is_kept, ends)


def with_chains(trees: DraftTrees, forced: dict[int, list[int]]) -> DraftTrees:
    """Replace the trees of some rows by the forced tokens, where a tree does not begin with them.

    A tree without refused drafts branches only behind them, and may continue there.

    Args:
        forced: by row.
    """
    if not forced:
        return trees
    ends = np.cumsum(trees.num_nodes).tolist()
    parts: list[DraftTrees] = []
    for row, (end, count) in enumerate(zip(ends, trees.num_nodes.tolist(), strict=True)):
        nodes = slice(end - count, end)
        chain = forced.get(row, [])
        begins = trees.token_ids[nodes][: len(chain)].tolist() == chain
        if begins and trees.parents[nodes][: len(chain)].tolist() == [*range(-1, len(chain) - 1)]:
            own = (column[nodes] for column in trees.columns()[1:])
            parts.append(DraftTrees(trees.num_nodes[row : row + 1], *own))
        else:
            parts.append(
                chains([np.array(chain, dtype=np.int32)], [np.zeros(len(chain), np.int32)])
            )
    columns = zip(*(part.columns() for part in parts), strict=True)
    return DraftTrees(*(np.concatenate(column) for column in columns))


def _selected(trees: DraftTrees, is_kept: Array, ends: Array) -> DraftTrees:
    """The kept nodes, which include the parent of each."""
    num_kept = np.concatenate([[0], np.cumsum(is_kept)]).astype(np.int32)
    starts = num_kept[ends - trees.num_nodes]
    firsts = np.repeat(ends - trees.num_nodes, trees.num_nodes)
    before = np.repeat(starts, trees.num_nodes)
    parents = np.where(trees.parents < 0, -1, num_kept[trees.parents + firsts] - before)
    return DraftTrees(
        num_kept[ends] - starts,
        trees.token_ids[is_kept],
        parents[is_kept].astype(np.int32),
        trees.classes[is_kept],
    )
