"""Builds the plan message of a step for the worker, and advances the batch's token counts.

`scheduling_policy` decides which rows the step has.
"""

import numpy as np

from taco_proto.steps import EMPTY, BlockCopies, IntArray, JoinedSequences, PlannedDrafts, StepPlan
from taco_scheduler.core.step_rows import NOTHING_SAVED, SavedStates, StepRows
from taco_scheduler.kv.sequence_snapshots import NO_SNAPSHOT
from taco_scheduler.state.batch import Batch
from taco_scheduler.state.in_flight import InFlightStep
from taco_scheduler.state.sequence import Sequence
from taco_scheduler.token_ids import token_array


def make_plan(
    batch: Batch,
    rows: StepRows,
    epoch: int,
    step_id: int,
    *,
    now: float,
    runs_alone: bool,
    is_announced: bool = False,
    drafts: PlannedDrafts | None = None,
    copies: BlockCopies | None = None,
    saved: SavedStates = NOTHING_SAVED,
    needs_history: bool = False,
) -> tuple[StepPlan, InFlightStep]:
    """Make the plan of a step, and the record that its output is checked against.

    Advances `num_computed` and `num_tokens` of the rows: the scheduler counts tokens when it plans
    them, not when they arrive.

    Args:
        runs_alone: no other step is in flight.
        is_announced: the worker announces the step before it begins, to help find a poison request.
        saved: the states that a recurrent worker saves in the step.
        needs_history: the worker reads all tokens of joining sequences, also of cached blocks.
    """
    num_decodes = len(rows.decode_slots)
    if rows.chunk_slots:
        chunk_slots = np.array(rows.chunk_slots, dtype=np.int32)
        chunk_tokens = np.array(rows.chunk_tokens, dtype=np.int32)
        if num_decodes:
            slots = np.concatenate([rows.decode_slots, chunk_slots])
            num_tokens = np.concatenate([np.ones(num_decodes, np.int32), chunk_tokens])
        else:
            slots, num_tokens = chunk_slots, chunk_tokens
    else:
        slots = rows.decode_slots
        num_tokens = np.ones(len(slots), np.int32)
    # Before the counts advance: a joining sequence names the tokens computed before it joins.
    again = batch.take_joining_again()
    joining = rows.joined + again
    joined = _joined(batch, joining, needs_history) if joining else None
    if again:
        _omit_appended(rows, {sequence.slot for sequence in again})
    num_computed = batch.num_computed[slots] + num_tokens
    batch.num_computed[slots] = num_computed
    max_drafts = EMPTY
    if num_decodes and rows.max_drafts.any():
        max_drafts = np.zeros(len(slots), np.int32)
        max_drafts[:num_decodes] = rows.max_drafts
        batch.drafts_in_flight[rows.decode_slots] += rows.max_drafts
    sampled = slots
    if rows.chunk_slots:
        sampled = slots[num_computed == batch.num_tokens[slots]]
    if len(sampled):
        batch.num_tokens[sampled] += 1
        if batch.num_beams:
            batch.is_held[sampled] = batch.is_beam[sampled]
    plan = StepPlan(
        epoch=epoch,
        step_id=step_id,
        slots=slots,
        num_tokens=num_tokens,
        left_slots=batch.take_left_slots() if batch.left_slots else EMPTY,
        joined=joined,
        appended_slots=_column(rows.appended_slots),
        appended_blocks=_column(rows.appended_blocks),
        max_drafts=max_drafts,
        drafts=drafts,
        copies=copies,
        saved_slots=saved.slots,
        saved_positions=saved.positions,
        saved_snapshots=saved.snapshots,
        is_announced=is_announced,
    )
    generations = batch.slot_generation[slots]
    step = InFlightStep(
        step_id=step_id,
        slots=slots,
        num_tokens=num_tokens,
        generations=generations,
        sampled_slots=sampled,
        sampled_generations=generations if sampled is slots else batch.slot_generation[sampled],
        max_drafts=_of_sampled(rows, len(sampled)),
        planned_at=now,
        ran_alone=runs_alone,
        only_decodes=not rows.chunk_slots,
    )
    return plan, step


def _omit_appended(rows: StepRows, slots: set[int]) -> None:
    """Remove the new blocks of slots that join again: their whole block tables are in the plan."""
    kept = [i for i, slot in enumerate(rows.appended_slots) if slot not in slots]
    rows.appended_slots = [rows.appended_slots[i] for i in kept]
    rows.appended_blocks = [rows.appended_blocks[i] for i in kept]


def _column(values: list[int]) -> IntArray:
    return np.array(values, dtype=np.int32) if values else EMPTY


def _of_sampled(rows: StepRows, num_sampled: int) -> IntArray:
    """Draft tokens of the rows that sample; decodes come first, and all of them sample."""
    if not num_sampled:
        return EMPTY
    max_drafts = np.zeros(num_sampled, np.int32)
    max_drafts[: len(rows.decode_slots)] = rows.max_drafts
    return max_drafts


def _joined(batch: Batch, sequences: list[Sequence], needs_history: bool) -> JoinedSequences:
    slots = np.array([s.slot for s in sequences], dtype=np.int32)
    num_computed = batch.num_computed[slots]
    reads_history = [needs_history or s.request.reads_history for s in sequences]
    omitted = np.where(reads_history, 0, num_computed).astype(np.int32)
    token_ids = [token_array(s.pack())[n:] for s, n in zip(sequences, omitted, strict=True)]
    tables = [s.table.blocks for s in sequences if s.table is not None]
    return JoinedSequences(
        slots=slots,
        num_prompt_tokens=np.array([s.request.num_prompt_tokens for s in sequences], np.int32),
        num_tokens=batch.num_tokens[slots],
        num_computed_tokens=num_computed,
        token_ids=np.concatenate(token_ids),
        num_omitted_tokens=omitted if omitted.any() else EMPTY,
        num_blocks=np.array([len(blocks) for blocks in tables], np.int32),
        block_ids=np.concatenate([np.array(blocks, np.int32) for blocks in tables]),
        sampling=tuple(s.sampling_for_worker() for s in sequences),
        cache_salts=_salts(sequences),
        grammar_hashes=_grammar_hashes(sequences),
        adapters=_adapters(sequences),
        state_snapshots=_state_snapshots(sequences),
    )


def _state_snapshots(sequences: list[Sequence]) -> IntArray:
    """The snapshots that sequences of a recurrent worker continue from; empty: none does."""
    states = [s.table.states for s in sequences if s.table is not None]
    snapshots = [NO_SNAPSHOT if each is None else each.joined_from for each in states]
    return EMPTY if max(snapshots) == NO_SNAPSHOT else np.array(snapshots, np.int32)


def _grammar_hashes(sequences: list[Sequence]) -> tuple[bytes, ...]:
    grammars = [s.request.grammar for s in sequences]
    if not any(grammars):
        return ()
    return tuple(b"" if grammar is None else grammar.hash for grammar in grammars)


def _salts(sequences: list[Sequence]) -> tuple[str, ...]:
    salts = tuple(s.request.namespace.cache_salt for s in sequences)
    return salts if any(salts) else ()


def _adapters(sequences: list[Sequence]) -> tuple[str, ...]:
    adapters = tuple(s.request.adapter for s in sequences)
    return adapters if any(adapters) else ()
