"""The logits processors of the sequences in the batch.

What a processor sees is a function of its sequence's committed tokens: it is made when the sequence
joins, and gets all tokens at each call. So preemption and replay rebuild it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from taco_kernels.native.draft_trees import DraftTrees
from taco_proto.steps import JoinedSequences, RowError, RowErrorCode, StepPlan
from taco_worker.batch.input_batch import InputBatch, StepRows
from taco_worker.batch.plan_error import PlanError
from taco_worker.devices.transfers import Download, Transfers
from taco_worker.processors.loading import LoadedProcessor
from taco_worker.processors.sequence_processors import ProcessorError, SequenceProcessors
from taco_worker.sampling.slot_params import Feature

_NO_TOKEN_LEFT = "no token has a finite logit after the logits processors of this request"


@dataclass(frozen=True, slots=True)
class _SampledRow:
    """A sequence that a step samples.

    Attributes:
        first: its first row of the logits; one more row follows for each draft.
        num_new: committed tokens that the sequence has not read.
        paths: the draft tokens between the sequence's last token and each of its drafts.
    """

    slot: int
    sequence: SequenceProcessors
    first: int
    num_new: int
    paths: list[list[int]]


@dataclass(slots=True)
class StepProcessors:
    """The processors of one step.

    Attributes:
        errors: of sequences whose processors could not be made.
        failures: by slot, why a sequence with processors ends if no token can be chosen. A row
            whose processor failed has no finite logit; it matters if verification reaches it.
    """

    errors: tuple[RowError, ...]
    failures: dict[int, RowError] = field(default_factory=dict)
    _sampled: list[_SampledRow] = field(default_factory=list)
    _new_tokens: Download | None = None

    def apply(self, logits: Tensor) -> None:
        """Change the rows of the step's logits, float32 [num_rows, vocab_size], in place."""
        if self._new_tokens is None:
            return
        (arrived,) = self._new_tokens.wait()
        tokens, start = arrived.tolist(), 0
        for row in self._sampled:
            row.sequence.output += tokens[start : start + row.num_new]
            start += row.num_new
            code, message = RowErrorCode.PROCESSOR_FAILED, _NO_TOKEN_LEFT
            for offset, path in enumerate(([], *row.paths)):
                one = logits[row.first + offset]
                try:
                    row.sequence.apply(one, path)
                except ProcessorError as error:
                    one.fill_(math.nan)
                    if message == _NO_TOKEN_LEFT:
                        code, message = error.code, str(error)
            self.failures[row.slot] = RowError(row.slot, code, message)


class SlotProcessors:
    """Follows the sequences with logits processors. Belongs to the model's thread."""

    def __init__(
        self, batch: InputBatch, transfers: Transfers, loaded: Mapping[str, LoadedProcessor]
    ) -> None:
        """
        Args:
            loaded: the processors that requests may name.
        """
        self._batch = batch
        self._transfers = transfers
        self._loaded = loaded
        self._by_slot: dict[int, SequenceProcessors] = {}
        self._failed: dict[int, RowError] = {}  # sequences whose processors could not be made

    def __bool__(self) -> bool:
        """Whether a sequence has processors, or names some that could not be made."""
        return bool(self._by_slot or self._failed)

    def clear(self) -> None:
        """Remove all sequences."""
        self._by_slot.clear()
        self._failed.clear()

    def apply(self, plan: StepPlan) -> None:
        """Apply a plan's leaving and joining sequences, after the batch has applied it.

        Raises:
            PlanError: a joining sequence lacks tokens that its processors read.
        """
        if self._by_slot or self._failed:
            for slot in plan.left_slots.tolist():
                self._by_slot.pop(slot, None)
                self._failed.pop(slot, None)
        if plan.joined is not None:
            self._join(plan.joined)

    def _join(self, joined: JoinedSequences) -> None:
        if not any(params.logits_processors for params in joined.sampling):
            return
        lengths = joined.num_tokens - joined.first_tokens
        starts = np.cumsum(lengths) - lengths
        for row, params in enumerate(joined.sampling):
            if not params.logits_processors:
                continue
            if joined.first_tokens[row]:
                raise PlanError("a joined sequence lacks tokens that its processors read")
            first, count = int(starts[row]), int(lengths[row])
            tokens = joined.token_ids[first : first + count].tolist()
            num_prompt = int(joined.num_prompt_tokens[row])
            sequence = SequenceProcessors(tokens[:num_prompt], tokens[num_prompt:])
            slot = int(joined.slots[row])
            try:
                sequence.make(params, self._loaded)
            except ProcessorError as error:
                self._failed[slot] = RowError(slot, error.code, str(error))
                continue
            if sequence:
                self._by_slot[slot] = sequence
                self._batch.sampling.features[slot] |= Feature.PROCESSORS

    def begin(self, rows: StepRows) -> StepProcessors | None:
        """Start to fetch the tokens that the processors of a step read, before the model runs.

        Returns:
            None if no row of the step has processors.
        """
        if not self._by_slot and not self._failed:
            return None
        slots = rows.slots.tolist()
        errors = tuple(self._failed[slot] for slot in slots if slot in self._failed)
        outputs = rows.num_outputs()
        firsts = (np.cumsum(outputs) - outputs).tolist()
        sampled = [
            _SampledRow(
                slot,
                self._by_slot[slot],
                firsts[row],
                int(self._batch.num_tokens[slot]) - self._by_slot[slot].num_tokens,
                [] if rows.trees is None else _paths(rows.trees, row),
            )
            for row, slot in enumerate(slots)
            if outputs[row] and slot in self._by_slot
        ]
        if not sampled:
            return StepProcessors(errors) if errors else None
        return StepProcessors(errors, _sampled=sampled, _new_tokens=self._fetch(sampled))

    def _fetch(self, sampled: list[_SampledRow]) -> Download:
        """The committed tokens that the sequences have not read, one sequence after the other."""
        places = [
            (row.slot, row.sequence.num_tokens + i) for row in sampled for i in range(row.num_new)
        ]
        slots, positions = np.array(places, dtype=np.int32).reshape(-1, 2).T
        return self._transfers.download(self._batch.tokens.at(slots, positions))


def _paths(trees: DraftTrees, row: int) -> list[list[int]]:
    """The tokens from the root to each node of a row's tree, the node's own last."""
    end = int(trees.num_nodes[: row + 1].sum())
    nodes = slice(end - int(trees.num_nodes[row]), end)
    paths: list[list[int]] = []
    for token_id, parent in zip(
        trees.token_ids[nodes].tolist(), trees.parents[nodes].tolist(), strict=True
    ):
        paths.append([*(paths[parent] if parent >= 0 else ()), token_id])
    return paths
