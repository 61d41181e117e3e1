"""The matchers of the sequences in the batch: which tokens may follow their texts.

A matcher's state is a function of its sequence's committed tokens. It is made when the sequence
joins, and reads the tokens that were committed since its last step.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from taco_proto.steps import IntArray, JoinedSequences, RowError, StepPlan
from taco_worker.batch.input_batch import InputBatch, StepRows
from taco_worker.batch.plan_error import PlanError
from taco_worker.devices.transfers import Download, Transfers
from taco_worker.grammars.call_thread import CallThread
from taco_worker.grammars.compiler import GrammarCompiler
from taco_worker.grammars.matcher import Matcher
from taco_worker.grammars.row_masks import Draft, RowMasks
from taco_worker.grammars.sequence_grammar import SequenceGrammar
from taco_worker.sampling.token_masks import TokenMasks, mask_of


@dataclass(frozen=True, slots=True)
class SlotMatcher:
    """The matcher of one of some slots.

    Attributes:
        index: of its slot among them.
        num_unread: the sequence's last tokens that the matcher has not read.
    """

    index: int
    matcher: Matcher
    num_unread: int


@dataclass(frozen=True, slots=True)
class StepMasks:
    """Masks of a step's sampled rows.

    Attributes:
        errors: of sequences that end whatever they sample.
        failures: by slot, why a sequence ends if it gains no token. A draft after which its grammar
            failed has an empty mask; it matters if verification reaches it.
    """

    masks: TokenMasks
    errors: tuple[RowError, ...]
    failures: dict[int, RowError]


class SlotMatchers:
    """Follows the sequences with a grammar. Belongs to the model's thread.

    Masks are computed in another thread, while the model runs.
    """

    def __init__(
        self,
        batch: InputBatch,
        compiler: GrammarCompiler,
        transfers: Transfers,
        *,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
    ) -> None:
        self._batch = batch
        self._compiler = compiler
        self._transfers = transfers
        self._thread = CallThread("grammar-masks")
        self._by_slot: dict[int, SequenceGrammar] = {}
        known = [token_id for token_id in eos_token_ids if token_id < vocab_size]
        self._eos_mask = mask_of(known, vocab_size)

    def __bool__(self) -> bool:
        """Whether a sequence has a grammar."""
        return bool(self._by_slot)

    def clear(self) -> None:
        """Remove all sequences."""
        self._by_slot.clear()

    def apply(self, plan: StepPlan) -> None:
        """Apply a plan's leaving and joining sequences, after the batch has applied it.

        Raises:
            PlanError: a joining sequence has a grammar that the scheduler did not send.
        """
        if self._by_slot:
            for slot in plan.left_slots.tolist():
                self._by_slot.pop(slot, None)
        if plan.joined is not None and plan.joined.grammar_hashes:
            self._join(plan.joined)

    def _join(self, joined: JoinedSequences) -> None:
        first_tokens = joined.first_tokens
        ends = np.cumsum(joined.num_tokens - first_tokens)
        for row, key in enumerate(joined.grammar_hashes):
            if not key:
                continue
            compiled = self._compiler.find(key)
            if compiled is None:
                raise PlanError("a joined sequence has a grammar that was not sent")
            num_prompt, num_tokens = int(joined.num_prompt_tokens[row]), int(joined.num_tokens[row])
            if first_tokens[row] > num_prompt:
                raise PlanError("a joined sequence lacks tokens that its grammar reads")
            num_generated = num_tokens - num_prompt
            generated = joined.token_ids[ends[row] - num_generated : ends[row]]
            params = joined.sampling[row]
            self._by_slot[int(joined.slots[row])] = SequenceGrammar(
                compiled,
                num_prompt,
                num_tokens,
                generated.tolist(),
                params.min_tokens,
                params.ignore_eos,
            )

    def find(self, slots: IntArray, *, reads: bool) -> list[SlotMatcher]:
        """The matchers of those slots that have a grammar, for use until the next `begin`.

        Args:
            reads: they read all tokens first, which waits for the device. Otherwise they are as
                their last masks left them, and slots without masks so far are left out.
        """
        found = [
            (index, sequence)
            for index, slot in enumerate(slots.tolist())
            if (sequence := self._by_slot.get(slot)) is not None
        ]
        if not found:
            return []
        self._thread.join()
        num_tokens = self._batch.num_tokens[slots]
        if reads:
            indexes = [index for index, _ in found]
            sequences = [sequence for _, sequence in found]
            _hand_out(sequences, self._new_tokens(slots[indexes], sequences))
            return [SlotMatcher(index, sequence.read(), 0) for index, sequence in found]
        return [
            SlotMatcher(index, sequence.matcher, int(num_tokens[index]) - sequence.num_tokens)
            for index, sequence in found
            if sequence.matcher is not None
        ]

    def begin(self, rows: StepRows) -> Future[StepMasks] | None:
        """Start to compute the masks of a step's sampled rows, before the model runs.

        Returns:
            None if no sampled row has a grammar.
        """
        if not self._by_slot:
            return None
        outputs = rows.num_outputs()
        starts = np.cumsum(outputs) - outputs
        found = [
            (row, int(starts[row]), sequence)
            for row in np.flatnonzero(outputs).tolist()
            if (sequence := self._by_slot.get(int(rows.slots[row]))) is not None
        ]
        if not found:
            return None
        slots = rows.slots[[row for row, _, _ in found]]
        drafts = [_draft_of(rows, row) for row, _, _ in found]
        sequences = [sequence for _, _, sequence in found]
        new = self._new_tokens(slots, sequences)
        first_rows = [start for _, start, _ in found]
        return self._thread.submit(
            lambda: self._compute(slots.tolist(), sequences, first_rows, drafts, new)
        )

    def _new_tokens(
        self, slots: IntArray, sequences: list[SequenceGrammar]
    ) -> tuple[list[int], Download]:
        """Tokens committed since the last masks: their number per sequence, and all of them."""
        for sequence in sequences:
            sequence.rebuild_after_error()
        known = np.array([sequence.num_tokens for sequence in sequences], dtype=np.int32)
        counts = self._batch.num_tokens[slots] - known
        before = np.cumsum(counts) - counts
        places = np.arange(int(counts.sum()), dtype=np.int32)
        positions = (places + np.repeat(known - before, counts)).astype(np.int32)
        for sequence, count in zip(sequences, counts.tolist(), strict=True):
            sequence.num_tokens += count
        tokens = self._batch.tokens.at(np.repeat(slots, counts), positions)
        return counts.tolist(), self._transfers.download(tokens)

    def _compute(
        self,
        slots: list[int],
        sequences: list[SequenceGrammar],
        first_rows: list[int],
        drafts: list[Draft],
        new: tuple[list[int], Download],
    ) -> StepMasks:
        """Runs in the masks' thread."""
        _hand_out(sequences, new)
        found: list[RowMasks] = []
        errors: list[RowError] = []
        failures: dict[int, RowError] = {}
        for slot, sequence, draft in zip(slots, sequences, drafts, strict=True):
            masks = sequence.masks(draft, self._eos_mask)
            found.append(masks)
            if not masks.error:
                continue
            error = RowError(slot, masks.error_code, masks.error)
            if masks.failed_draft is None:
                errors.append(error)
            else:
                failures[slot] = error
        places = [
            first + np.arange(masks.bits.shape[0])
            for first, masks in zip(first_rows, found, strict=True)
        ]
        return StepMasks(
            TokenMasks(
                np.concatenate(places).astype(np.int64),
                np.concatenate([masks.bits for masks in found]),
                np.concatenate([masks.is_complete for masks in found]),
            ),
            tuple(errors),
            failures,
        )


def _hand_out(sequences: list[SequenceGrammar], new: tuple[list[int], Download]) -> None:
    """Give each sequence its new tokens."""
    counts, download = new
    (tensor,) = download.wait()
    tokens, start = tensor.tolist(), 0
    for sequence, count in zip(sequences, counts, strict=True):
        sequence.unread += tokens[start : start + count]
        start += count


def _draft_of(rows: StepRows, row: int) -> Draft:
    if rows.trees is None:
        return Draft([], [])
    count = int(rows.trees.num_nodes[row])
    end = int(rows.trees.num_nodes[: row + 1].sum())
    nodes = slice(end - count, end)
    return Draft(rows.trees.token_ids[nodes].tolist(), rows.trees.parents[nodes].tolist())
