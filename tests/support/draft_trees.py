"""Steps with trees of draft tokens, run on a model without a worker."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from support.plans import ints
from taco_proto.steps import IntArray
from taco_worker.models.step_model import ModelInput, StepModel


@dataclass(frozen=True)
class Tree:
    """Tokens of one sequence in a step, depth first.

    Attributes:
        parents: for each, which of them it follows; -1 for the first.
    """

    token_ids: list[int]
    parents: list[int]

    def path(self, node: int) -> list[int]:
        """The way from the root to a node, both among them."""
        above = [] if node == 0 else self.path(self.parents[node])
        return [*above, node]

    def ids_to(self, node: int) -> list[int]:
        return [self.token_ids[i] for i in self.path(node)]


def chain(token_ids: Sequence[int]) -> Tree:
    return Tree(list(token_ids), list(range(-1, len(token_ids) - 1)))


@st.composite
def trees(draw: st.DrawFn, max_tokens: int = 14, vocab_size: int = 384) -> Tree:
    """A root and nodes: each is a child of one on the path to the one before it."""
    size = draw(st.integers(2, max_tokens))
    parents = [-1]
    path = [0]
    for node in range(1, size):
        depth = draw(st.sampled_from(range(len(path))) | st.just(len(path) - 1))
        parents.append(path[depth])
        path = [*path[: depth + 1], node]
    token_ids = draw(st.lists(st.integers(0, vocab_size - 1), min_size=size, max_size=size))
    return Tree(token_ids, parents)


class TreeRunner:
    """Sequences by name; their blocks are dealt from a shuffled deck."""

    def __init__(
        self, model: StepModel, *, num_blocks: int = 32, block_size: int = 16, seed: int = 0
    ) -> None:
        self._model = model
        self._block_size = block_size
        longest = min(num_blocks * block_size, model.plan.max_position_embeddings)
        model.allocate_kv(num_blocks, block_size, longest)
        self._deck = random.Random(seed).sample(range(num_blocks), num_blocks)
        self._tables: dict[str, list[int]] = {}
        self._lens: dict[str, int] = {}

    def drop(self, name: str) -> None:
        self._deck += self._tables.pop(name)
        del self._lens[name]

    def path_hidden(self, token_ids: Sequence[int]) -> Tensor:
        """Hidden states of a whole sequence, alone and in one piece."""
        hidden = self.step({"alone": chain(token_ids)})
        self.drop("alone")
        return hidden

    @torch.inference_mode()
    def step(self, rows: Mapping[str, Tree], output_rows: IntArray | None = None) -> Tensor:
        """Hidden states of the tokens at `output_rows`, or of all."""
        inputs = self._make_input(rows, output_rows)
        hidden = self._model.forward(inputs).clone()
        self._lens |= {name: self._lens[name] + len(row.token_ids) for name, row in rows.items()}
        return hidden

    @torch.inference_mode()
    def step_and_keep(
        self, rows: Mapping[str, Tree], accepted: Mapping[str, int]
    ) -> dict[str, Tensor]:
        """A step, after which of each tree the path to one node is kept.

        Returns:
            Hidden states of all tokens of each row.
        """
        inputs = self._make_input(rows, None)
        hidden = self._model.forward(inputs).clone()
        kept: list[int] = []
        for start, (name, row) in zip(inputs.query_start.tolist(), rows.items(), strict=False):
            path = row.path(accepted[name])
            kept += [start + node for node in path]
            self._lens[name] += len(path)
        if inputs.parents is not None:
            self._model.keep_accepted(inputs, ints(kept))
        sizes = [len(row.token_ids) for row in rows.values()]
        return dict(zip(rows, hidden.split(sizes), strict=True))

    def _make_input(self, rows: Mapping[str, Tree], output_rows: IntArray | None) -> ModelInput:
        positions: list[int] = []
        parents: list[int] = []
        starts = [0]
        for name, row in rows.items():
            begin, first = self._lens.setdefault(name, 0), starts[-1]
            depths = [len(row.path(node)) - 1 for node in range(len(row.token_ids))]
            positions += [begin + depth for depth in depths]
            parents += [first + parent if parent >= 0 else -1 for parent in row.parents]
            starts.append(first + len(depths))
            table = self._tables.setdefault(name, [])
            while len(table) * self._block_size < begin + len(depths):
                table.append(self._deck.pop())
        lens = [self._lens[name] + len(row.token_ids) for name, row in rows.items()]
        tables = [self._tables[name] for name in rows]
        width = max(map(len, tables))
        is_plain = all(row == chain(row.token_ids) for row in rows.values())
        return ModelInput(
            token_ids=torch.tensor([i for row in rows.values() for i in row.token_ids]).int(),
            positions=ints(positions),
            query_start=ints(starts),
            seq_lens=ints(lens),
            block_tables=np.array([[*t, *[-1] * (width - len(t))] for t in tables], dtype=np.int32),
            output_rows=ints(range(starts[-1])) if output_rows is None else output_rows,
            parents=None if is_plain else ints(parents),
        )
