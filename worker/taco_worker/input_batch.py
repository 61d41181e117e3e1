"""The worker's persistent batch: what it knows of every sequence between steps."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from taco_proto.steps import IntArray, JoinedSequences, StepPlan
from taco_worker.sampling.columns import Array, SamplingColumns
from taco_worker.token_table import TokenTable


class PlanError(ValueError):
    """A plan that contradicts the batch; the step fails, and nothing was run."""


@dataclass(frozen=True, slots=True)
class StepRows:
    """The sequences that run in a step.

    Attributes:
        slots: [num_rows].
        num_computed_tokens: tokens whose KV was there before the step.
        num_new_tokens: tokens that the step computes.
        is_sampled: whether a row's new tokens reach the end of what is known of its sequence.
    """

    slots: IntArray
    num_computed_tokens: IntArray
    num_new_tokens: IntArray
    is_sampled: Array


class InputBatch:
    """Slots with their tokens, block tables and sampling parameters; it follows plans.

    Tokens live in a buffer [max_num_seqs, max_model_len] whose memory the operating system hands
    out as it is first written. All per-slot arrays mean something for occupied slots only.

    A plan is checked as it is applied, and one that fails may have been applied in part: the batch
    must then be `clear`ed.
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
    ) -> None:
        """`tokens` has a row a slot, of max_model_len tokens."""
        self.max_num_seqs = max_num_seqs
        self.max_model_len = max_model_len
        self.block_size = block_size
        self._num_kv_blocks = num_blocks
        self._vocab_size = vocab_size
        self.tokens = tokens
        self.is_occupied = np.zeros(max_num_seqs, dtype=np.bool_)
        self.num_prompt_tokens = np.zeros(max_num_seqs, dtype=np.int32)
        self.num_tokens = np.zeros(max_num_seqs, dtype=np.int32)
        self.num_computed_tokens = np.zeros(max_num_seqs, dtype=np.int32)
        self.num_blocks = np.zeros(max_num_seqs, dtype=np.int32)
        max_blocks = -(-max_model_len // block_size)
        self.block_tables = np.zeros((max_num_seqs, max_blocks), dtype=np.int32)
        self.sampling = SamplingColumns(
            max_num_seqs, vocab_size=vocab_size, eos_token_ids=eos_token_ids
        )

    def clear(self) -> None:
        self.is_occupied[:] = False

    def apply(self, plan: StepPlan) -> StepRows:
        """Take in what a plan changes; returns the rows to run.

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
        return self._rows(plan.slots, plan.num_tokens)

    def advance(self, rows: StepRows, sampled_token_ids: Tensor) -> None:
        """Take in what a step gives: integers [number of sampled rows], in the rows' order, which
        the device may still be working out."""
        self.num_computed_tokens[rows.slots] += rows.num_new_tokens
        slots = rows.slots[rows.is_sampled]
        positions = self.num_tokens[slots]
        self.tokens.write(slots, positions, sampled_token_ids)
        self.num_tokens[slots] = positions + 1

    def _leave(self, slots: IntArray) -> None:
        self._check_slots(slots, "left", occupied=True)
        self.is_occupied[slots] = False

    def _join(self, joined: JoinedSequences) -> None:
        self._check_slots(joined.slots, "joined", occupied=False)
        self._check_joined(joined)
        self.tokens.put(joined.slots, joined.num_tokens, joined.token_ids)
        block_end = np.cumsum(joined.num_blocks)
        for row, slot in enumerate(joined.slots.tolist()):
            num_blocks = joined.num_blocks[row]
            block_ids = joined.block_ids[block_end[row] - num_blocks : block_end[row]]
            self.block_tables[slot, :num_blocks] = block_ids
            self.sampling.set_row(slot, joined.sampling[row])
        self.num_prompt_tokens[joined.slots] = joined.num_prompt_tokens
        self.num_tokens[joined.slots] = joined.num_tokens
        self.num_computed_tokens[joined.slots] = joined.num_computed_tokens
        self.num_blocks[joined.slots] = joined.num_blocks
        self.is_occupied[joined.slots] = True

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

    def _rows(self, slots: IntArray, num_new_tokens: IntArray) -> StepRows:
        if slots.size != num_new_tokens.size:
            raise PlanError(f"{num_new_tokens.size} numbers of tokens for {slots.size} slots")
        self._check_slots(slots, "run", occupied=True)
        num_computed_tokens = self.num_computed_tokens[slots]
        ends = num_computed_tokens + num_new_tokens.astype(np.int64)  # garbage must not wrap round
        num_tokens = self.num_tokens[slots]
        is_sampled = ends == num_tokens
        if (num_new_tokens < 1).any() or (ends > num_tokens).any():
            raise PlanError("a row runs no token, or tokens that are not known")
        if (ends > self.num_blocks[slots] * self.block_size).any():
            raise PlanError("a row runs tokens that its blocks do not hold")
        if (num_tokens[is_sampled] >= self.max_model_len).any():
            raise PlanError(f"a sequence grows beyond {self.max_model_len} tokens")
        return StepRows(slots, num_computed_tokens, num_new_tokens, is_sampled)

    def _check_joined(self, joined: JoinedSequences) -> None:
        columns = (
            joined.num_prompt_tokens,
            joined.num_tokens,
            joined.num_computed_tokens,
            joined.num_blocks,
            joined.sampling,
        )
        if any(len(column) != joined.slots.size for column in columns):
            raise PlanError("the columns of the joined sequences differ in length")
        if (
            (joined.num_prompt_tokens < 1).any()
            or (joined.num_prompt_tokens > joined.num_tokens).any()
            or (joined.num_tokens > self.max_model_len).any()
            or (joined.num_computed_tokens < 0).any()
            or (joined.num_computed_tokens >= joined.num_tokens).any()
            or (joined.num_blocks < 0).any()
            or (joined.num_blocks > self.block_tables.shape[1]).any()
        ):
            raise PlanError("a joined sequence has a number of tokens or blocks out of range")
        if (
            joined.num_tokens.sum() != joined.token_ids.size
            or joined.num_blocks.sum() != joined.block_ids.size
        ):
            raise PlanError("joined sequences whose tokens or blocks are too few or too many")
        if joined.token_ids.min() < 0 or joined.token_ids.max() >= self._vocab_size:
            raise PlanError(f"a token id is not in the vocabulary of {self._vocab_size}")
        self._check_blocks(joined.block_ids)

    def _check_blocks(self, block_ids: IntArray) -> None:
        if block_ids.size and (block_ids.min() < 0 or block_ids.max() >= self._num_kv_blocks):
            raise PlanError(f"a block is not one of the {self._num_kv_blocks} that there are")

    def _check_slots(
        self, slots: IntArray, what: str, *, occupied: bool, unique: bool = True
    ) -> None:
        if not slots.size:
            return
        if slots.min() < 0 or slots.max() >= self.max_num_seqs:
            raise PlanError(f"a {what} slot is not one of the {self.max_num_seqs} that there are")
        if unique:
            seen = np.zeros(self.max_num_seqs, dtype=np.bool_)
            seen[slots] = True
            if np.count_nonzero(seen) != slots.size:
                raise PlanError(f"a slot is {what} twice in one plan")
        if (self.is_occupied[slots] != occupied).any():
            state = "empty" if occupied else "occupied"
            raise PlanError(f"a {what} slot is {state}")
