"""Runs the draft model: greedy continuations of the sequences that a request names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from taco_draft.counters import DraftCounters
from taco_draft.model_loading import load_draft_model
from taco_draft.sequence_table import DraftSequence, SequenceTable
from taco_proto.config import DrafterConfig
from taco_proto.drafts import DrafterInfo, DraftReply, DraftRequest
from taco_proto.steps import IntArray
from taco_worker.models.step_model import ModelInput

# A long prompt is prefilled in chunks, so that the other sequences get their drafts in time.
_MAX_CATCH_UP_TOKENS = 512


@dataclass(frozen=True, slots=True)
class _Row:
    """A sequence of a request, with the requested number of drafts."""

    sequence: DraftSequence
    num_drafts: int


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A row, and the number of its tokens, without drafts, that have KV after the catch-up."""

    row: _Row
    end: int

    @property
    def num_drafts(self) -> int:
        """Drafts to compute in this request; 0 for a row that has not caught up yet."""
        return self.row.num_drafts if self.end == self.row.sequence.num_tokens else 0


class DraftRunner:
    """The draft model and the state of its sequences. Not thread safe.

    A request first catches up: one step computes the tokens without KV of all rows, which replaced
    rejected drafts, followed them, or are chunks of new prompts. Then the rows that have caught up
    get their drafts, one token per step. The KV of rejected drafts is overwritten.

    Attributes:
        counters: counters of the requests.
    """

    def __init__(self, config: DrafterConfig) -> None:
        """Loads the model.

        Raises:
            ConfigurationError: the model cannot be found or read, or does not support the
                configuration.
        """
        loaded = load_draft_model(config)
        self._model = loaded.model
        self._max_model_len = loaded.max_model_len
        self.info = DrafterInfo(
            name=config.name,
            model=config.model.served_name,
            vocab_size=loaded.model.plan.vocab_size,
            max_model_len=loaded.max_model_len,
        )
        self.counters = DraftCounters()
        self._table = SequenceTable(
            num_blocks=loaded.num_blocks,
            block_size=loaded.block_size,
            max_model_len=loaded.max_model_len,
            vocab_size=self.info.vocab_size,
        )

    def reset(self) -> None:
        """Forget all sequences, for a scheduler that has restarted."""
        self._table.clear()

    def draft(self, request: DraftRequest) -> DraftReply:
        """Draft tokens for a request; the reply's rows may be in another order.

        The reply omits rows that cannot be drafted for, rows whose prompt is not complete yet (the
        next requests continue it), and rows that the KV memory has no room for. A row with zero
        drafts only catches up.

        Raises:
            ValueError: the request's columns have inconsistent lengths.
        """
        begun = perf_counter()
        try:
            reply = self._draft(request)
        except Exception:
            self.counters.num_failed += 1
            raise
        self.counters.seconds.observe(perf_counter() - begun)
        self.counters.num_drafts += reply.token_ids.size
        return reply

    @torch.inference_mode()
    def _draft(self, request: DraftRequest) -> DraftReply:
        chunks = self._plan_catch_up(self._follow(request))
        if not chunks:
            return DraftReply(request_id=request.request_id)
        ready = [chunk for chunk in chunks if chunk.num_drafts]
        hidden = self._catch_up(chunks, len(ready))
        if not ready:
            return DraftReply(request_id=request.request_id)
        sequences = [chunk.row.sequence for chunk in ready]
        num_drafts = np.array([chunk.num_drafts for chunk in ready], dtype=np.int32)
        drafts = self._continue(sequences, num_drafts, hidden)
        for sequence, row, count in zip(sequences, drafts, num_drafts.tolist(), strict=True):
            sequence.add_drafts(row[:count])
        return DraftReply(
            request_id=request.request_id,
            sequences=np.array([sequence.number for sequence in sequences], dtype=np.int64),
            num_drafts=num_drafts,
            token_ids=drafts[np.arange(drafts.shape[1]) < num_drafts[:, None]],
        )

    def _follow(self, request: DraftRequest) -> list[_Row]:
        columns = (request.num_known, request.num_tokens, request.num_drafts)
        if any(column.size != request.sequences.size for column in columns):
            raise ValueError("a draft request has columns of different lengths")
        if (request.num_tokens < 0).any() or request.num_tokens.sum() != request.token_ids.size:
            raise ValueError(
                "a draft request has too few or too many tokens: "
                f"{request.token_ids.size}, not {request.num_tokens.sum()}"
            )
        self._table.leave(request.left)
        rows: dict[int, _Row] = {}
        ends = np.cumsum(request.num_tokens).tolist()
        for number, num_known, num_new, wanted, end in zip(
            request.sequences.tolist(),
            *(column.tolist() for column in columns),
            ends,
            strict=True,
        ):
            token_ids = request.token_ids[end - num_new : end]
            sequence = self._table.extend(number, num_known, token_ids)
            rows.pop(number, None)
            if sequence is not None and wanted >= 0:
                room = self._max_model_len - sequence.num_tokens
                rows[number] = _Row(sequence, min(wanted, room))
        return list(rows.values())

    def _plan_catch_up(self, rows: list[_Row]) -> list[_Chunk]:
        """Plan the tokens to compute per row, and reserve blocks for them and for the drafts.

        Rows with the fewest missing tokens come first, so that a long prompt gets the rest of the
        budget. The result is sorted by number of drafts, descending.
        """
        chunks: list[_Chunk] = []
        in_use: set[int] = set()
        budget = _MAX_CATCH_UP_TOKENS
        for row in sorted(rows, key=lambda row: row.sequence.num_missing_tokens):
            sequence = row.sequence
            size = min(sequence.num_missing_tokens, budget)
            if not size:
                break
            chunk = _Chunk(row, sequence.num_computed_tokens + size)
            if self._table.reserve(sequence, chunk.end + max(chunk.num_drafts - 1, 0), in_use):
                in_use.add(sequence.number)
                chunks.append(chunk)
                budget -= size
        return sorted(chunks, key=lambda chunk: -chunk.num_drafts)

    def _catch_up(self, chunks: Sequence[_Chunk], num_outputs: int) -> Tensor:
        """Compute all chunks; return the last hidden states of the first `num_outputs` chunks."""
        sequences = [chunk.row.sequence for chunk in chunks]
        starts = [sequence.num_computed_tokens for sequence in sequences]
        spans = [(start, chunk.end) for start, chunk in zip(starts, chunks, strict=True)]
        token_ids = [
            sequence.token_ids[start:end]
            for sequence, (start, end) in zip(sequences, spans, strict=True)
        ]
        query_start = np.zeros(len(chunks) + 1, dtype=np.int32)
        np.cumsum([end - start for start, end in spans], out=query_start[1:])
        hidden = self._model.forward(
            ModelInput(
                token_ids=torch.from_numpy(np.concatenate(token_ids)),
                positions=np.concatenate([np.arange(*span, dtype=np.int32) for span in spans]),
                query_start=query_start,
                seq_lens=np.array([chunk.end for chunk in chunks], dtype=np.int32),
                block_tables=_block_tables(sequences),
                output_rows=query_start[1 : num_outputs + 1] - 1,
            )
        )
        for sequence, chunk in zip(sequences, chunks, strict=True):
            sequence.num_computed_tokens = chunk.end
        return hidden

    def _continue(
        self, sequences: Sequence[DraftSequence], num_drafts: IntArray, hidden: Tensor
    ) -> IntArray:
        """Draft tokens for sequences that have caught up.

        Args:
            num_drafts: int32 [num_rows], descending, positive.
            hidden: [num_rows, hidden_size], of each sequence's last token.

        Returns:
            int32 [num_rows, num_drafts[0]]; entries past a row's num_drafts are undefined.
        """
        positions = np.array([sequence.num_tokens for sequence in sequences], dtype=np.int32)
        block_tables = _block_tables(sequences)
        rows = np.arange(len(sequences) + 1, dtype=np.int32)
        token_ids = self._model.most_likely(hidden).int().clamp_(min=0)
        drafts = np.zeros((len(sequences), int(num_drafts[0])), dtype=np.int32)
        drafts[:, 0] = token_ids.numpy()
        for depth in range(1, drafts.shape[1]):
            num_rows = int(np.count_nonzero(num_drafts > depth))
            hidden = self._model.forward(
                ModelInput(
                    token_ids=token_ids[:num_rows],
                    positions=positions[:num_rows] + np.int32(depth - 1),
                    query_start=rows[: num_rows + 1],
                    seq_lens=positions[:num_rows] + np.int32(depth),
                    block_tables=block_tables[:num_rows],
                    output_rows=rows[:num_rows],
                )
            )
            token_ids = self._model.most_likely(hidden).int().clamp_(min=0)
            drafts[:num_rows, depth] = token_ids.numpy()
        return drafts


def _block_tables(sequences: Sequence[DraftSequence]) -> IntArray:
    """Block tables, int32 [num_rows, maximum number of blocks]."""
    tables = np.zeros((len(sequences), max(len(s.blocks) for s in sequences)), dtype=np.int32)
    for row, sequence in enumerate(sequences):
        tables[row, : len(sequence.blocks)] = sequence.blocks
    return tables
