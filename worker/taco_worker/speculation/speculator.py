"""Speculative decoding on the worker: proposes drafts, selects which to verify, and learns."""

from __future__ import annotations

import logging
import time

import numpy as np

from taco_kernels.native.draft_selector import DraftSelector
from taco_kernels.native.draft_trees import DraftTrees, are_trees
from taco_proto.steps import EMPTY, IntArray, PlannedDrafts, StepOutput, StepPlan
from taco_worker.batch.input_batch import InputBatch, StepRows
from taco_worker.batch.plan_error import PlanError
from taco_worker.sampling.slot_params import READS_TOKENS
from taco_worker.speculation.draft_pausing import DraftPause
from taco_worker.speculation.drafter import ComputedTokens, Drafter, chains, no_drafts
from taco_worker.speculation.grammar_drafter import GrammarDrafter, with_chains

logger = logging.getLogger("taco.worker")

# Classes of a draft worker's drafts: one per depth.
_NUM_PLANNED_CLASSES = 16
_PLANNED_PRIOR = 0.6


class Speculator:
    """Speculative decoding of one worker. Drafts come from the worker's own drafter or, in a plan,
    from a draft worker.

    Attributes:
        drafter: None: only drafts in plans are verified.
    """

    def __init__(
        self,
        drafter: Drafter | None,
        batch: InputBatch,
        *,
        vocab_size: int,
        max_draft_tokens: int,
        max_tree_paths: int,
        grammar_drafter: GrammarDrafter | None = None,
    ) -> None:
        """
        Args:
            max_tree_paths: paths that all trees of a step may have beyond the first path of each.
            grammar_drafter: drafts forced tokens, and removes drafts that grammars refuse; None: no
                sequence has a grammar.

        Raises:
            KernelLibraryError: the native library is missing.
        """
        self.drafter = drafter
        self.max_draft_tokens = max_draft_tokens
        self._num_invalid = 0
        self._has_complained = False
        self._batch = batch
        self._vocab_size = vocab_size
        self._max_tree_paths = max_tree_paths
        self._grammar_drafter = grammar_drafter
        # Rows of the step whose drafts are not the drafter's.
        self._forced_slots = self._planned_slots = EMPTY
        own_priors = np.zeros(0, np.float32) if drafter is None else drafter.priors
        self._first_planned_class = own_priors.size
        planned = np.full(_NUM_PLANNED_CLASSES, _PLANNED_PRIOR, np.float32)
        self._selector = DraftSelector(np.concatenate([own_priors, planned]), batch.max_num_seqs)
        self._pause = DraftPause()
        # The slots whose sequences the drafter knows.
        self._is_followed = np.zeros(batch.max_num_seqs, dtype=np.bool_)
        self._started_at = self._draft_seconds = 0.0  # of the current step
        self._began_idle = True  # the device was idle when the step began
        self._has_proposed = False

    def clear(self) -> None:
        """Remove all sequences."""
        self._is_followed[:] = False
        if self.drafter is not None:
            self.drafter.clear()

    def apply(self, plan: StepPlan) -> None:
        """Apply a plan's leaving and joining sequences, after the batch has applied it."""
        self._pause.count_step()
        if plan.left_slots.size:
            self._leave(plan.left_slots)
        if plan.joined is None:
            return
        self._selector.start(plan.joined.slots)
        if self.drafter is not None and not self._is_releasing:
            if self.drafter.needs_history and plan.joined.first_tokens.any():
                raise PlanError("a joined sequence lacks tokens that the drafter reads")
            self.drafter.join(plan.joined)
            self._is_followed[plan.joined.slots] = True

    @property
    def _is_releasing(self) -> bool:
        """Whether the paused drafter gives up its sequences. A drafter that needs hidden states
        costs time for every token; a pause stops all of it, and it would miss tokens."""
        assert self.drafter is not None
        return self._pause.is_paused and self.drafter.hidden_layers is not None

    def _leave(self, slots: IntArray) -> None:
        followed = slots[self._is_followed[slots]]
        if self.drafter is not None and followed.size:
            self.drafter.leave(followed)
        self._is_followed[followed] = False

    @property
    def may_rest(self) -> bool:
        """Whether the next step, if no sequence joins or leaves and its plan has no drafts, needs
        nothing of this, because there is no drafter or it is paused: then it takes less of the
        host's time."""
        if self.drafter is None:
            return True
        return self._pause.lasts and self.hidden_layers is None

    def rest(self, output: StepOutput, seconds: float) -> None:
        """Follow a step that ran without this, and took `seconds`."""
        if self.drafter is None:
            # Only these steps tell what a step without drafts takes.
            self._selector.observe_step(output.slots.size, seconds)
            return
        self._pause.count_step()
        is_followed = self._is_followed[output.slots]
        if is_followed.any():
            slots = output.slots[is_followed]
            self.drafter.append(slots, np.ones_like(slots), output.token_ids[is_followed])

    def draft(self, rows: StepRows, planned: PlannedDrafts | None) -> StepRows:
        """Begin a step: return the rows with the drafts that are worth verifying."""
        self._started_at = time.perf_counter()
        may = np.flatnonzero(rows.max_drafts > 0)
        slots = rows.slots[may]
        trees = self._propose(slots, rows.max_drafts[may], planned)
        forced: dict[int, list[int]] = {}
        if self._grammar_drafter is not None:
            trees = self._grammar_drafter.without_refused(trees, slots)
            forced = self._grammar_drafter.forced(rows, may)
        self._forced_slots = slots[list(forced)]
        self._has_proposed = trees.token_ids.size > 0
        was_asked = self.drafter is not None and not self._pause.is_paused
        if not slots.size or not (self._has_proposed or was_asked or forced):
            return rows
        chosen = trees
        if self._has_proposed or was_asked:
            chosen = self._choose(trees, slots, int(rows.num_new_tokens.sum()))
        chosen = with_chains(chosen, forced)
        if not chosen.token_ids.size:
            return rows
        num_nodes = np.zeros_like(rows.slots)
        num_nodes[may] = chosen.num_nodes
        return rows.with_drafts(
            DraftTrees(num_nodes, chosen.token_ids, chosen.parents, chosen.classes)
        )

    def _choose(self, trees: DraftTrees, slots: IntArray, num_other_tokens: int) -> DraftTrees:
        chosen = self._selector.select(
            trees,
            slots,
            num_other_tokens=num_other_tokens,
            # Penalties read the tokens before a draft; the token table holds them for chains only.
            has_one_path=(self._batch.sampling.features[slots] & READS_TOKENS) != 0,
            max_branches=self._max_tree_paths,
            draft_seconds=self._pause.draft_seconds,
        )
        if chosen.plain_seconds:
            self._pause.record_speedup(chosen.gain, chosen.plain_seconds)
        return chosen.trees

    @property
    def hidden_layers(self) -> tuple[int, ...] | None:
        """The hidden states that the drafter needs of the current step; see `Drafter`."""
        if self.drafter is None or not self._is_followed.any():
            return None
        return self.drafter.hidden_layers

    def observe(self, computed: ComputedTokens) -> None:
        """Pass the step's hidden states to the drafter, before `learn`."""
        assert self.drafter is not None
        computed = computed.select(self._is_followed[computed.slots])
        if not computed.slots.size:
            return
        started_at = time.perf_counter()
        self.drafter.observe(computed)
        self._draft_seconds += time.perf_counter() - started_at

    def learn(
        self, slots: IntArray, num_tokens: IntArray, token_ids: IntArray, num_drafts: IntArray
    ) -> None:
        """Pass on the new tokens of sequences, `num_tokens` each: the accepted of `num_drafts`
        verified drafts, and the bonus token."""
        if self._has_proposed:
            self._selector.learn(slots, num_tokens, token_ids)
            self._has_proposed = False
        if self.drafter is None:
            return
        if slots.size:
            is_own = ~np.isin(slots, np.concatenate([self._forced_slots, self._planned_slots]))
            self.drafter.record_verified(slots, num_drafts * is_own, (num_tokens - 1) * is_own)
        is_followed = self._is_followed[slots]
        if is_followed.all():
            if slots.size:
                self.drafter.append(slots, num_tokens, token_ids)
        elif is_followed.any():
            is_kept = np.repeat(is_followed, num_tokens)
            self.drafter.append(slots[is_followed], num_tokens[is_followed], token_ids[is_kept])

    def take_num_invalid(self) -> int:
        """Number of invalid results of drafters since the last call."""
        num_invalid, self._num_invalid = self._num_invalid, 0
        return num_invalid

    def end_step(self, num_tokens: int, *, is_done: bool = True) -> None:
        """End a step that computed `num_tokens` tokens.

        Args:
            is_done: False if the step has only been launched. Its duration, and that of the next
                step, which waits for it, is then unknown.
        """
        seconds = time.perf_counter() - self._started_at - self._draft_seconds
        if is_done and self._began_idle:
            self._selector.observe_step(num_tokens, seconds)
        self._began_idle = is_done
        if self._draft_seconds:
            self._pause.record_draft_time(self._draft_seconds)
        self._draft_seconds = 0.0
        if self.drafter is not None and self._is_releasing:
            self._leave(np.flatnonzero(self._is_followed).astype(np.int32))

    # ------------------------------------------------------------------ drafts

    def _propose(
        self, slots: IntArray, max_drafts: IntArray, planned: PlannedDrafts | None
    ) -> DraftTrees:
        self._planned_slots = EMPTY
        trees = no_drafts(slots.size)
        if self.drafter is not None and slots.size and not self._pause.is_paused:
            started_at = time.perf_counter()
            trees = self.drafter.draft(slots, max_drafts * self._is_followed[slots])
            trees = self._checked(trees, slots, max_drafts)
            self._draft_seconds += time.perf_counter() - started_at
        if planned is None:
            return trees
        return self._with_planned(trees, slots, max_drafts, planned)

    def _checked(self, trees: DraftTrees, slots: IntArray, max_drafts: IntArray) -> DraftTrees:
        """Check a drafter's trees; if any is invalid, drop all of them."""
        if are_trees(trees, max_drafts, self._vocab_size, self._first_planned_class):
            return trees
        if not self._has_complained:
            logger.error("the drafter returned invalid token ids or too many drafts; dropping them")
            self._has_complained = True
        self._num_invalid += 1
        return no_drafts(slots.size)

    def _with_planned(
        self, own: DraftTrees, slots: IntArray, max_drafts: IntArray, planned: PlannedDrafts
    ) -> DraftTrees:
        """Replace the own drafter's trees by a draft worker's chains, where the plan has them."""
        ends = np.cumsum(planned.num_drafts)
        chain_of = {
            slot: (num_tokens, planned.token_ids[end - count : end])
            for slot, num_tokens, count, end in zip(
                planned.slots.tolist(),
                planned.num_tokens.tolist(),
                planned.num_drafts.tolist(),
                ends.tolist(),
                strict=True,
            )
        }
        node_ends = np.cumsum(own.num_nodes).tolist()
        parts: list[DraftTrees] = []
        taken: list[int] = []
        for row, slot in enumerate(slots.tolist()):
            num_tokens, chain = chain_of.get(slot, (-1, EMPTY))
            nodes = slice(node_ends[row] - int(own.num_nodes[row]), node_ends[row])
            if num_tokens == self._batch.num_tokens[slot]:
                taken.append(slot)
                chain = chain[: max_drafts[row]]
                depths = np.minimum(np.arange(chain.size), _NUM_PLANNED_CLASSES - 1)
                classes = (self._first_planned_class + depths).astype(np.int32)
                parts.append(chains([chain], [classes]))
            else:
                parts.append(
                    DraftTrees(
                        own.num_nodes[row : row + 1],
                        own.token_ids[nodes],
                        own.parents[nodes],
                        own.classes[nodes],
                    )
                )
        self._planned_slots = np.array(taken, dtype=np.int32)
        return DraftTrees(
            np.concatenate([EMPTY, *(part.num_nodes for part in parts)]),
            np.concatenate([EMPTY, *(part.token_ids for part in parts)]),
            np.concatenate([EMPTY, *(part.parents for part in parts)]),
            np.concatenate([EMPTY, *(part.classes for part in parts)]),
        )
