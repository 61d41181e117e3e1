"""The worker's persistent batch: tokens, block tables and sampling parameters of every slot."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from taco_kernels.native.draft_trees import DraftTrees
from taco_proto.steps import IntArray, JoinedSequences, StepPlan
from taco_worker.batch.plan_error import PlanError
from taco_worker.batch.slot_states import SlotStates
from taco_worker.batch.token_table import TokenTable
from taco_worker.sampling.slot_params import READS_TOKENS, Array, SlotSamplingParams

# In place of an adapter's id.
NO_ADAPTER = -1


@dataclass(frozen=True, slots=True)
class StepRows:
    """The sequences that run in a step.

    Attributes:
        slots: [num_rows].
        num_computed_tokens: tokens whose KV existed before the step.
        num_new_tokens: tokens that the step computes.
        is_sampled: whether a row's new tokens include the last known token of its sequence.
        max_drafts: draft tokens that a row may verify within its blocks; 0 for other rows.
        trees: drafts that the rows verify; `num_new_tokens` includes them. None without drafts.
        are_forced: all drafts are tokens that grammars force, so that all are accepted.
    """

    slots: IntArray
    num_computed_tokens: IntArray
    num_new_tokens: IntArray
    is_sampled: Array
    max_drafts: IntArray
    trees: DraftTrees | None = None
    are_forced: bool = False

    def with_drafts(self, trees: DraftTrees, *, forced: bool = False) -> StepRows:
        """Add a tree to each row; the tree of a row without drafts is empty."""
        num_new_tokens = self.num_new_tokens + trees.num_nodes
        return replace(self, num_new_tokens=num_new_tokens, trees=trees, are_forced=forced)

    def without_drafts(self) -> StepRows:
        assert self.trees is not None
        num_new_tokens = self.num_new_tokens - self.trees.num_nodes
        return replace(self, num_new_tokens=num_new_tokens, trees=None, are_forced=False)

    def output_slots(self) -> IntArray:
        """The slot of each token after which one is sampled."""
        if self.trees is None:
            return self.slots[self.is_sampled]
        return np.repeat(self.slots, self.num_outputs())

    def num_outputs(self) -> IntArray:
        """Tokens of each row after which a token is sampled: the last one and all of a tree."""
        if self.trees is None:
            return self.is_sampled.astype(np.int32)
        return self.is_sampled * (1 + self.trees.num_nodes)


class InputBatch:
    """The state of all slots; each plan updates it.

    The token buffer [max_num_seqs, max_model_len] is not touched at the start: the operating
    system allocates its pages at the first write. Per-slot arrays are valid for occupied slots
    only.

    A plan is checked while it is applied. A plan that fails may have been applied in part: the
    batch must then be `clear`ed.
    """

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        num_blocks: int,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        tokens: TokenTable,
        gives_logprobs: bool = True,
        adapters: Sequence[str] = (),
        states: SlotStates | None = None,
    ) -> None:
        """
        Args:
            tokens: one row of max_model_len tokens per slot.
            gives_logprobs: whether requests for output log probabilities are served.
            adapters: names of the adapters that sequences may have, in the order of their ids.
            states: of a model whose sequences have recurrent states.
        """
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        self.block_size = block_size
        self.num_kv_blocks = num_blocks
        self._vocab_size = vocab_size
        self.eos_token_ids = tuple(eos_token_ids)
        self.tokens = tokens
        self.states = states
        self.is_occupied = np.zeros(max_num_seqs, dtype=np.bool_)
        self.num_prompt_tokens = np.zeros(max_num_seqs, dtype=np.int32)
        self.num_tokens = np.zeros(max_num_seqs, dtype=np.int32)
        self.num_computed_tokens = np.zeros(max_num_seqs, dtype=np.int32)
        self.num_blocks = np.zeros(max_num_seqs, dtype=np.int32)
        self._adapters = {name: index for index, name in enumerate(adapters)} | {"": NO_ADAPTER}
        self.adapter_ids = np.full(max_num_seqs, NO_ADAPTER, dtype=np.int32)
        max_blocks = -(-max_model_len // block_size)
        self.block_tables = np.zeros((max_num_seqs, max_blocks), dtype=np.int32)
        self.sampling = SlotSamplingParams(
            max_num_seqs,
            vocab_size=vocab_size,
            eos_token_ids=eos_token_ids,
            gives_logprobs=gives_logprobs,
        )

    def has_adapters(self, slots: IntArray) -> bool:
        """Whether one of the sequences in these slots has an adapter."""
        return len(self._adapters) > 1 and bool((self.adapter_ids[slots] != NO_ADAPTER).any())

    def clear(self) -> None:
        self.is_occupied[:] = False

    def apply(self, plan: StepPlan) -> StepRows:
        """Apply a plan's changes and return the rows to run.

        Raises:
            PlanError: the plan names a slot, block or token that does not exist, or does not fit
                the batch.
        """
        if plan.left_slots.size:
            self._leave(plan.left_slots)
        if plan.joined is not None and plan.joined.slots.size:
            self._join(plan.joined)
        if plan.appended_slots.size or plan.appended_blocks.size:
            self._append(plan.appended_slots, plan.appended_blocks)
        rows = self._rows(plan.slots, plan.num_tokens, plan.max_drafts)
        if self.states is not None:
            self.states.save(plan, rows.num_computed_tokens, rows.num_new_tokens)
        elif plan.saved_slots.size:
            raise PlanError("the model has no states to save")
        return rows

    def advance(self, rows: StepRows, sampled_token_ids: Tensor) -> None:
        """Append the tokens of a step without drafts: integers [number of sampled rows], in the
        rows' order. The device may still be computing them."""
        self.num_computed_tokens[rows.slots] += rows.num_new_tokens
        if self.states is not None:
            self.states.advance(rows.slots)
        slots = rows.slots[rows.is_sampled]
        positions = self.num_tokens[slots]
        self.tokens.write(slots, positions, sampled_token_ids)
        self.num_tokens[slots] = positions + 1

    def advance_by(self, rows: StepRows, num_tokens: IntArray, token_ids: Tensor) -> None:
        """Append the tokens of a step with drafts.

        Args:
            num_tokens: int32 [number of sampled rows], accepted drafts plus the bonus token.
            token_ids: integers [sum(num_tokens)].
        """
        assert rows.trees is not None
        self.num_computed_tokens[rows.slots] += rows.num_new_tokens - rows.trees.num_nodes
        slots = rows.slots[rows.is_sampled]
        self.num_computed_tokens[slots] += num_tokens - 1
        starts = np.cumsum(num_tokens) - num_tokens
        places = np.arange(int(num_tokens.sum()), dtype=np.int32) - np.repeat(starts, num_tokens)
        positions = np.repeat(self.num_tokens[slots], num_tokens) + places
        self.tokens.write(np.repeat(slots, num_tokens), positions.astype(np.int32), token_ids)
        self.num_tokens[slots] += num_tokens

    def _leave(self, slots: IntArray) -> None:
        self._check_slots(slots, "left", occupied=True)
        self.is_occupied[slots] = False

    def _join(self, joined: JoinedSequences) -> None:
        self._check_slots(joined.slots, "joined", occupied=False)
        self._check_joined(joined)
        self.tokens.put(joined.slots, joined.first_tokens, joined.num_tokens, joined.token_ids)
        block_end = np.cumsum(joined.num_blocks)
        for row, slot in enumerate(joined.slots.tolist()):
            num_blocks = joined.num_blocks[row]
            block_ids = joined.block_ids[block_end[row] - num_blocks : block_end[row]]
            self.block_tables[slot, :num_blocks] = block_ids
            has_grammar = bool(joined.grammar_hashes and joined.grammar_hashes[row])
            self.sampling.set_row(slot, joined.sampling[row], has_grammar=has_grammar)
        lacks_history = joined.first_tokens > 0
        if (self.sampling.features[joined.slots[lacks_history]] & READS_TOKENS).any():
            raise PlanError("a joined sequence lacks tokens that its sampling parameters read")
        self.num_prompt_tokens[joined.slots] = joined.num_prompt_tokens
        self.num_tokens[joined.slots] = joined.num_tokens
        self.num_computed_tokens[joined.slots] = joined.num_computed_tokens
        self.num_blocks[joined.slots] = joined.num_blocks
        self.adapter_ids[joined.slots] = self._adapter_ids(joined)
        if self.states is not None:
            self.states.join(joined)
        self.is_occupied[joined.slots] = True

    def _adapter_ids(self, joined: JoinedSequences) -> int | list[int]:
        if not joined.adapters:
            return NO_ADAPTER
        try:
            return [self._adapters[name] for name in joined.adapters]
        except KeyError as error:
            raise PlanError(f"a joined sequence has the unknown adapter {error}") from None

    def _append(self, slots: IntArray, block_ids: IntArray) -> None:
        if slots.size != block_ids.size:
            raise PlanError(f"{block_ids.size} blocks appended to {slots.size} slots")
        self._check_slots(slots, "appended", occupied=True, unique=False)
        self._check_blocks(block_ids)
        for slot, block_id in zip(slots.tolist(), block_ids.tolist(), strict=True):
            column = self.num_blocks[slot]
            if column == self.block_tables.shape[1]:
                raise PlanError(f"slot {slot} has all the {column} blocks that a sequence can have")
            self.block_tables[slot, column] = block_id
            self.num_blocks[slot] = column + 1

    def _rows(self, slots: IntArray, num_new_tokens: IntArray, max_drafts: IntArray) -> StepRows:
        if slots.size != num_new_tokens.size:
            raise PlanError(f"{num_new_tokens.size} numbers of tokens for {slots.size} slots")
        self._check_slots(slots, "run", occupied=True)
        num_computed_tokens, num_tokens = self.num_computed_tokens[slots], self.num_tokens[slots]
        num_left = num_tokens - num_computed_tokens
        if ((num_new_tokens < 1) | (num_new_tokens > num_left)).any():
            raise PlanError("a row runs no token, or tokens that the worker does not know")
        ends = num_computed_tokens + num_new_tokens
        capacity = self.num_blocks[slots] * self.block_size
        if (ends > capacity).any():
            raise PlanError("a row runs tokens that its blocks do not hold")
        is_sampled = num_new_tokens == num_left
        if (is_sampled & (num_tokens >= self.max_model_len)).any():
            raise PlanError(f"a sequence grows beyond {self.max_model_len} tokens")
        if max_drafts.size:
            self._check_drafts(ends, capacity, max_drafts)
            max_drafts = max_drafts * is_sampled
        else:
            max_drafts = np.zeros_like(slots)
        return StepRows(slots, num_computed_tokens, num_new_tokens, is_sampled, max_drafts)

    def _check_drafts(self, ends: IntArray, capacity: IntArray, max_drafts: IntArray) -> None:
        if max_drafts.size != ends.size or (max_drafts < 0).any():
            raise PlanError("max_drafts must hold one number of at least 0 for each row")
        if (max_drafts > capacity - ends).any():  # their sum may overflow
            raise PlanError("a row may verify drafts that its blocks do not hold")
        if (ends + max_drafts >= self.max_model_len + (max_drafts == 0)).any():
            raise PlanError(f"drafts make a sequence grow beyond {self.max_model_len} tokens")

    def _check_joined(self, joined: JoinedSequences) -> None:
        columns: tuple[Sized, ...] = (
            joined.num_prompt_tokens,
            joined.num_tokens,
            joined.num_computed_tokens,
            joined.num_blocks,
            joined.sampling,
        )
        columns = (*columns, *(each for each in (joined.grammar_hashes, joined.adapters) if each))
        first_tokens = joined.first_tokens
        if any(len(column) != joined.slots.size for column in (*columns, first_tokens)):
            raise PlanError("the columns of the joined sequences differ in length")
        if (
            (joined.num_prompt_tokens < 1).any()
            or (joined.num_prompt_tokens > joined.num_tokens).any()
            or (joined.num_tokens > self.max_model_len).any()
            or (joined.num_computed_tokens < 0).any()
            or (joined.num_computed_tokens >= joined.num_tokens).any()
            or (first_tokens < 0).any()
            or (first_tokens > joined.num_computed_tokens).any()
            or (joined.num_blocks < 0).any()
            or (joined.num_blocks > self.block_tables.shape[1]).any()
        ):
            raise PlanError("a joined sequence has a number of tokens or blocks out of range")
        if (
            joined.num_tokens - first_tokens
        ).sum() != joined.token_ids.size or joined.num_blocks.sum() != joined.block_ids.size:
            raise PlanError("the numbers of tokens or blocks of the joined sequences do not add up")
        if joined.token_ids.min() < 0 or joined.token_ids.max() >= self._vocab_size:
            raise PlanError(f"a token id is not in the vocabulary of {self._vocab_size}")
        self._check_blocks(joined.block_ids)

    def _check_blocks(self, block_ids: IntArray) -> None:
        if block_ids.size and (block_ids.min() < 0 or block_ids.max() >= self.num_kv_blocks):
            raise PlanError(f"a block id is not in 0 to {self.num_kv_blocks - 1}")

    def _check_slots(
        self, slots: IntArray, what: str, *, occupied: bool, unique: bool = True
    ) -> None:
        if not slots.size:
            return
        if slots.min() < 0 or slots.max() >= self.max_num_seqs:
            raise PlanError(f"a {what} slot is not in 0 to {self.max_num_seqs - 1}")
        if unique:
            seen = np.zeros(self.max_num_seqs, dtype=np.bool_)
            seen[slots] = True
            if np.count_nonzero(seen) != slots.size:
                raise PlanError(f"a slot is {what} twice in one plan")
        if (self.is_occupied[slots] != occupied).any():
            state = "empty" if occupied else "occupied"
            raise PlanError(f"a {what} slot is {state}")
