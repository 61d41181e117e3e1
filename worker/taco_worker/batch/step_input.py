"""Builds the model's input tensors from the rows of a step."""

from __future__ import annotations

import numpy as np

from taco_kernels.native.draft_trees import DraftTrees
from taco_proto.steps import IntArray
from taco_worker.batch.input_batch import InputBatch, StepRows
from taco_worker.devices.transfers import Transfers
from taco_worker.models.step_model import ModelInput
from taco_worker.sampling.slot_params import Array


def make_input(
    batch: InputBatch, rows: StepRows, ends: IntArray, outputs: IntArray, transfers: Transfers
) -> ModelInput:
    """Build a step's input with whole-column operations: no host loop over sequences.

    Args:
        ends: for each row, the end of its tokens among the step's tokens.
        outputs: indices of the tokens whose hidden states are needed, ascending.
    """
    num_rows, num_tokens = rows.slots.size, int(ends[-1])
    slots, positions = rows.slots, rows.num_computed_tokens
    if num_tokens != num_rows:
        slots = np.repeat(rows.slots, rows.num_new_tokens)
        first_positions = rows.num_computed_tokens - (ends - rows.num_new_tokens)
        positions = np.repeat(first_positions, rows.num_new_tokens)
        positions += np.arange(num_tokens, dtype=np.int32)
    seq_lens = rows.num_computed_tokens + rows.num_new_tokens
    max_blocks = -(-int(seq_lens.max()) // batch.block_size)
    query_start = np.zeros(num_rows + 1, dtype=np.int32)
    query_start[1:] = ends
    parents = None
    if rows.trees is not None:
        parents = _place_drafts(batch, rows, ends, slots, positions, transfers)
    token_ids = batch.tokens.at(slots, positions)
    if parents is not None:
        assert rows.trees is not None
        nodes, node_ids = transfers.upload(
            _node_tokens(rows, ends).astype(np.int64), rows.trees.token_ids
        )
        token_ids[nodes] = node_ids
    adapter_ids = batch.adapter_ids[slots] if batch.has_adapters(rows.slots) else None
    return ModelInput(
        token_ids=token_ids,
        positions=positions,
        query_start=query_start,
        seq_lens=seq_lens,
        block_tables=batch.block_tables[rows.slots, :max_blocks],
        output_rows=outputs,
        parents=parents,
        adapter_ids=adapter_ids,
        states=None if batch.states is None else batch.states.of(rows.slots),
    )


def _place_drafts(
    batch: InputBatch,
    rows: StepRows,
    ends: IntArray,
    slots: IntArray,
    positions: IntArray,
    transfers: Transfers,
) -> IntArray | None:
    """Set the positions of drafts and store the first path of each tree in the token table.

    The first path follows the sequence's own tokens, where the model's input and the penalties
    read it.

    Returns:
        For each token of the step the token that it follows; None if each follows the one before.
    """
    assert rows.trees is not None
    trees = rows.trees
    nodes = _node_tokens(rows, ends)
    roots = np.repeat(ends - trees.num_nodes - 1, trees.num_nodes)
    parents = np.arange(-1, positions.size - 1, dtype=np.int32)
    follows = parents[nodes] == roots + 1 + trees.parents
    if not follows.all():
        positions[nodes] = positions[roots] + _depths(trees)
        parents[nodes] = roots + 1 + trees.parents
        starts = ends - rows.num_new_tokens
        parents[starts] = -1
    on_first_path = _first_paths(follows, trees.num_nodes)
    chain = nodes[on_first_path]
    (chain_ids,) = transfers.upload(trees.token_ids[on_first_path])
    batch.tokens.write(slots[chain], positions[chain], chain_ids)
    return None if follows.all() else parents


def _node_tokens(rows: StepRows, ends: IntArray) -> IntArray:
    """Indices of the drafts of all rows among the step's tokens."""
    assert rows.trees is not None
    return last_of_each(ends, rows.trees.num_nodes)


def _depths(trees: DraftTrees) -> IntArray:
    """int32 [sum(num_nodes)], the depth of each node; children of a root have depth 1."""
    firsts = np.repeat(np.cumsum(trees.num_nodes) - trees.num_nodes, trees.num_nodes)
    above = parents = np.where(trees.parents < 0, -1, trees.parents + firsts)
    depths = np.ones(parents.size, dtype=np.int32)
    while (below := above >= 0).any():
        depths += below
        above = np.where(below, parents[above], -1)
    return depths


def output_tokens(rows: StepRows, ends: IntArray) -> IntArray:
    """Indices of the step's tokens after which a token is sampled, ascending.

    Args:
        ends: for each row, the end of its tokens among the step's tokens.
    """
    if rows.trees is None:
        return ends[rows.is_sampled] - 1
    return last_of_each(ends, rows.num_outputs())


def last_of_each(ends: IntArray, counts: IntArray) -> IntArray:
    """The indices ends[i] - counts[i] … ends[i] - 1 of every i, concatenated."""
    before = np.cumsum(counts) - counts
    numbers = np.arange(int(counts.sum())) + np.repeat(ends - counts - before, counts)
    return numbers.astype(np.int32)


def _first_paths(follows: Array, num_nodes: IntArray) -> Array:
    """Whether each node lies before the first branch of its tree."""
    ends = np.cumsum(num_nodes)
    num_breaks = np.concatenate([[0], np.cumsum(~follows)])
    before = np.repeat(num_breaks[ends - num_nodes], num_nodes)
    is_first: Array = num_breaks[1:] == before
    return is_first
