"""Runs a model over paged KV without a scheduler: blocks are dealt from a shuffled deck."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from support.plans import ints
from taco_proto.steps import IntArray
from taco_worker.attention.metadata import AttentionMetadata
from taco_worker.models.step_model import InputEmbeddings, ModelInput, StepModel
from taco_worker.models.step_states import NO_STATE, StepStates

_MAX_STATES = 32  # sequences of a model that has recurrent states


def make_metadata(
    query_lens: Sequence[int],
    seq_lens: Sequence[int],
    block_tables: Sequence[Sequence[int]],
    block_size: int,
) -> AttentionMetadata:
    """Metadata for sequences of `seq_lens` tokens of which the last `query_lens` are new."""
    width = max(len(table) for table in block_tables)
    padded = [[*table, *[-1] * (width - len(table))] for table in block_tables]
    slots = [
        table[position // block_size] * block_size + position % block_size
        for table, query_len, seq_len in zip(block_tables, query_lens, seq_lens, strict=True)
        for position in range(seq_len - query_len, seq_len)
    ]
    starts = torch.tensor([0, *query_lens]).cumsum(0)
    return AttentionMetadata(
        query_start_loc=starts.int(),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        block_tables=torch.tensor(padded, dtype=torch.int32),
        kv_slot_mapping=torch.tensor(slots, dtype=torch.int64),
        query_lens_host=list(query_lens),
        seq_lens_host=list(seq_lens),
    )


@dataclass(frozen=True)
class GivenTokens:
    """What a prompt gives beside its token ids.

    Attributes:
        rope_positions: [3, n].
        embeddings: [n, embedding_size], used where `is_given`.
    """

    rope_positions: Tensor
    embeddings: Tensor
    is_given: Tensor

    def part(self, begin: int, end: int) -> GivenTokens:
        one = slice(begin, end)
        return GivenTokens(self.rope_positions[:, one], self.embeddings[one], self.is_given[one])


class PagedRunner:
    """Feeds chunks of token ids of any number of sequences to a model."""

    def __init__(
        self,
        model: StepModel,
        *,
        num_blocks: int = 64,
        block_size: int = 16,
        seed: int = 0,
        adapters: Mapping[str, int] | None = None,
    ) -> None:
        """`adapters`: ids of the adapters that sequences have."""
        self._model = model
        self._block_size = block_size
        self._adapters = adapters
        longest = min(num_blocks * block_size, model.plan.max_position_embeddings)
        model.allocate_kv(num_blocks, block_size, longest)
        if model.plan.states:
            model.allocate_states(_MAX_STATES)
        self._free_blocks = random.Random(seed).sample(range(num_blocks), num_blocks)
        self._block_tables: dict[str, list[int]] = {}
        self._seq_lens: dict[str, int] = {}
        self._states: dict[str, int] = {}  # rows of the sequences that have begun

    def step(
        self,
        chunks: Mapping[str, Sequence[int]],
        given: Mapping[str, GivenTokens] | None = None,
    ) -> dict[str, Tensor]:
        """One forward pass: each sequence's next tokens to their logits [num_tokens, vocab].

        Args:
            given: for the tokens of each chunk.
        """
        query_lens = [len(token_ids) for token_ids in chunks.values()]
        rows = np.arange(sum(query_lens), dtype=np.int32)
        logits = self.logits_at(chunks, rows, given)
        return dict(zip(chunks, logits.split(query_lens), strict=True))

    def share_prefix(self, name: str, source: str, num_blocks: int) -> None:
        """A new sequence begins with the first blocks of another, whose tokens it shares."""
        self._block_tables[name] = self._block_tables[source][:num_blocks]
        self._seq_lens[name] = num_blocks * self._block_size

    @torch.inference_mode()
    def logits_at(
        self,
        chunks: Mapping[str, Sequence[int]],
        rows: IntArray,
        given: Mapping[str, GivenTokens] | None = None,
    ) -> Tensor:
        """The same for some of the pass's tokens only, [num_rows, vocab]."""
        positions: list[int] = []
        for name, token_ids in chunks.items():
            context_len = self._seq_lens.get(name, 0)
            self._seq_lens[name] = context_len + len(token_ids)
            positions += range(context_len, self._seq_lens[name])
            table = self._block_tables.setdefault(name, [])
            while len(table) * self._block_size < self._seq_lens[name]:
                table.append(self._free_blocks.pop())
        tables = [self._block_tables[name] for name in chunks]
        width = max(len(table) for table in tables)
        rope_positions, embeddings = None, None
        if given is not None:
            parts = [given[name] for name in chunks]
            rope_positions = torch.cat([part.rope_positions for part in parts], dim=1).int().numpy()
            is_given = torch.cat([part.is_given for part in parts])
            values = torch.cat([part.embeddings for part in parts])[is_given]
            if is_given.any():
                embeddings = InputEmbeddings(is_given.nonzero()[:, 0].int().numpy(), values)
        adapter_ids = None
        if (of_names := self._adapters) is not None:
            adapter_ids = ints([of_names.get(n, -1) for n, chunk in chunks.items() for _ in chunk])
        inputs = ModelInput(
            token_ids=torch.tensor(
                [i for chunk in chunks.values() for i in chunk], dtype=torch.int32
            ),
            positions=ints(positions),
            query_start=ints([0, *accumulate(len(chunk) for chunk in chunks.values())]),
            seq_lens=ints([self._seq_lens[name] for name in chunks]),
            block_tables=np.array([[*t, *[-1] * (width - len(t))] for t in tables], dtype=np.int32),
            output_rows=rows,
            embeddings=embeddings,
            rope_positions=rope_positions,
            adapter_ids=adapter_ids,
            states=self._step_states([*chunks]) if self._model.plan.states else None,
        )
        return self._model.compute_logits(self._model.forward(inputs))

    def _step_states(self, names: Sequence[str]) -> StepStates:
        sources = [self._states.get(name, NO_STATE) for name in names]
        for name in names:
            self._states.setdefault(name, len(self._states))
        rows, nothing = [self._states[name] for name in names], [0] * len(names)
        return StepStates(ints(rows), ints(sources), ints(nothing), ints(nothing))
