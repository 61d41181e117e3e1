"""Which steps have a CUDA graph; worker/triton tests the results of graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest
import torch
from torch import Tensor

from support.plans import ints
from taco_worker.attention.metadata import AttentionMetadata
from taco_worker.backends.torch.cuda_graphs import CudaGraphs, Forward
from taco_worker.devices.transfers import Transfers
from taco_worker.layers.sequence_states import SequenceStates
from taco_worker.models.step_model import InputEmbeddings, ModelInput
from taco_worker.models.step_states import StepStates


def step(query_lens: list[int], context_len: int = 40) -> ModelInput:
    seq_lens = [context_len + query_len for query_len in query_lens]
    positions = [i for n in seq_lens for i in range(context_len, n)]
    return ModelInput(
        token_ids=torch.arange(len(positions), dtype=torch.int32),
        positions=ints(positions),
        query_start=ints([0, *accumulate(query_lens)]),
        seq_lens=ints(seq_lens),
        block_tables=np.tile(np.arange(8, dtype=np.int32), (len(query_lens), 1)),
        output_rows=ints([0]),
    )


def forward(
    token_ids: Tensor,
    positions: Tensor,
    metadata: AttentionMetadata,
    rope_positions: Tensor | None,
    adapter_ids: Tensor | None,
    states: SequenceStates | None = None,
) -> Tensor:
    """A value that depends on every input of a step."""
    assert metadata.kv_slot_mapping.shape == positions.shape == token_ids.shape
    columns = [token_ids, positions, metadata.kv_slot_mapping.int()]
    if rope_positions is not None:
        assert rope_positions.is_contiguous()
        columns += rope_positions
    if adapter_ids is not None:
        columns.append(adapter_ids)
    if states is not None:
        assert states.query_start is metadata.query_start_loc
        rows = (states.rows, states.sources, states.saved_tokens, states.saved_rows)
        of_token = torch.bucketize(
            torch.arange(positions.numel()), states.query_start[1:], right=True
        )
        columns += [column[of_token.clamp(max=column.numel() - 1)] for column in rows]
    hidden = torch.stack(columns, dim=1)
    return hidden + metadata.seq_lens.sum() + metadata.query_start_loc[-1]


def replay(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    return run


def make_graphs(
    max_num_seqs: int = 40,
    forward: Forward = forward,
    num_rope_axes: int = 0,
    has_adapters: bool = False,
    has_states: bool = False,
    **changes: object,
) -> CudaGraphs:
    options: dict[str, object] = {"capture": replay, **changes}
    transfers = Transfers(torch.device("cpu"))
    graphs = CudaGraphs(transfers, max_num_seqs=max_num_seqs, **options)  # type: ignore[arg-type]
    graphs.prepare(
        forward,
        block_size=16,
        max_model_len=128,
        num_rope_axes=num_rope_axes,
        has_adapters=has_adapters,
        has_states=has_states,
    )
    return graphs


def is_captured(graphs: CudaGraphs, inputs: ModelInput) -> bool:
    """Run the step until it is captured."""
    for _ in range(3):
        graphs.find(inputs)
        while graphs.capture_next(only_urgent=True):
            pass
    return graphs.find(inputs) is not None


@pytest.mark.parametrize(
    ("query_lens", "expected"),
    [
        ([1] * 3, True),
        ([4, 2, 3], True),  # verified drafts
        ([17], False),
        ([1] * 41, False),
        ([1] * 39 + [16], False),  # nearly all padding
        ([1] * 3 + [8], True),  # little padding, which costs nothing
    ],
)
def test_which_steps_have_graphs(query_lens: list[int], expected: bool) -> None:
    assert is_captured(make_graphs(), step(query_lens)) == expected


def test_drafts_of_changing_lengths_share_graphs() -> None:
    """The number of lookahead drafts varies: a graph for each number would soon be too many."""
    graphs = make_graphs()
    for query_len in range(2, 17):
        assert is_captured(graphs, step([query_len] * 8))
    assert graphs.num_captured == 5  # of 2, 3, 5, 9 and 16 tokens
    for query_len in (4, 6, 10):
        inputs = step([query_len] * 8)
        graph = graphs.find(inputs)
        assert graph is not None
        total = int(inputs.seq_lens.sum()) + 8 * query_len
        assert (graph.run(inputs)[:, 1] - total).tolist() == inputs.positions.tolist()


def test_trees_have_separate_graphs() -> None:
    """In such graphs the padding of a shape must be a chain."""
    seen: list[Tensor] = []

    def keep_masks(
        token_ids: Tensor,
        positions: Tensor,
        metadata: AttentionMetadata,
        rope_positions: Tensor | None,
        adapter_ids: Tensor | None,
        states: SequenceStates | None,
    ) -> Tensor:
        seen.append(torch.empty(0) if metadata.tree is None else metadata.tree.masks.clone())
        return forward(token_ids, positions, metadata, rope_positions, adapter_ids)

    graphs = make_graphs(forward=keep_masks)
    chains = step([3, 2])
    trees = replace(chains, positions=ints([40, 41, 41, 40, 41]), parents=ints([-1, 0, 0, -1, 3]))
    assert is_captured(graphs, chains)
    assert is_captured(graphs, trees)
    for inputs, masks in ((chains, []), (trees, [0b1, 0b11, 0b101, -1, -1, -1])):
        graph = graphs.find(inputs)
        assert graph is not None
        hidden = graph.run(inputs)
        assert seen[-1].tolist() == masks
        # The nodes' KV is in the order of the tokens, as a chain's.
        total = int(inputs.seq_lens.sum()) + 5
        assert (hidden[:, 1] - total).tolist() == inputs.positions.tolist()
        assert (hidden[:, 2] - total).tolist() == chains.kv_slot_mapping(16).tolist()


def test_long_sequences_run_eagerly() -> None:
    graphs = make_graphs(max_seq_len=64)
    assert is_captured(graphs, step([1, 1], context_len=63))
    assert not is_captured(graphs, step([1, 1], context_len=64))


@pytest.mark.parametrize("query_lens", [[1, 1, 1], [2, 1, 3], [5]])
def test_a_graph_reads_the_step_and_ignores_padding(query_lens: list[int]) -> None:
    graphs = make_graphs()
    assert is_captured(graphs, step([3, 3, 3], context_len=7))  # stale inputs of another step
    inputs = step(query_lens)
    assert is_captured(graphs, inputs)
    graph = graphs.find(inputs)
    assert graph is not None
    hidden = graph.run(inputs)
    total = int(inputs.seq_lens.sum()) + sum(query_lens)
    expected = np.stack([inputs.token_ids, inputs.positions, inputs.kv_slot_mapping(16)], axis=1)
    assert np.array_equal(hidden.numpy(), expected + total)


@pytest.mark.parametrize("query_lens", [[1, 1, 1], [2, 1, 3]])
def test_a_graph_reads_rope_positions(query_lens: list[int]) -> None:
    """A step without them has its positions on each axis."""
    graphs = make_graphs(num_rope_axes=3)
    plain = step(query_lens)
    on_axes = replace(plain, rope_positions=plain.positions + ints([1, 3, 7])[:, None])
    assert is_captured(graphs, plain)
    for inputs in (plain, on_axes, plain):
        graph = graphs.find(inputs)
        assert graph is not None
        total = int(inputs.seq_lens.sum()) + sum(query_lens)
        expected = np.broadcast_to(inputs.positions, (3, sum(query_lens)))
        if inputs.rope_positions is not None:
            expected = inputs.rope_positions
        assert np.array_equal(graph.run(inputs)[:, 3:].T.numpy(), expected + total)


@pytest.mark.parametrize("query_lens", [[1, 1], [2, 1, 3]])
def test_a_graph_reads_the_ids_of_adapters(query_lens: list[int]) -> None:
    """A step without them has no adapter at each token, whatever the step before had."""
    graphs = make_graphs(has_adapters=True)
    plain = step(query_lens)
    adapted = replace(plain, adapter_ids=plain.positions % 3)
    assert is_captured(graphs, plain)
    for inputs in (plain, adapted, plain):
        graph = graphs.find(inputs)
        assert graph is not None
        ids = [-1] * sum(query_lens) if inputs.adapter_ids is None else inputs.adapter_ids.tolist()
        total = int(inputs.seq_lens.sum()) + sum(query_lens)
        assert (graph.run(inputs)[:, 3] - total).tolist() == ids


def test_steps_with_embeddings_run_eagerly() -> None:
    graphs, plain = make_graphs(), step([1, 1])
    assert is_captured(graphs, plain)
    given = InputEmbeddings(ints([1]), torch.zeros((1, 8)))
    assert not is_captured(graphs, replace(plain, embeddings=given))


def test_after_a_failed_capture_steps_run_eagerly(caplog: pytest.LogCaptureFixture) -> None:
    def fail(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        raise RuntimeError("operation not permitted when stream is capturing")

    graphs = make_graphs(capture=fail)
    assert not is_captured(graphs, step([1, 1]))
    assert not is_captured(graphs, step([1]))
    assert not graphs.capture_next()
    assert caplog.text.count("no more are captured, other steps run eagerly") == 1


def test_graphs_read_the_states_of_a_step() -> None:
    graphs = make_graphs(has_states=True)
    for first in (0, 5):
        rows = np.arange(first, first + 3, dtype=np.int32)
        given = StepStates(rows, rows + 10, rows * 0 + 1, rows + 20)
        inputs = replace(step([1, 1, 1]), states=given)
        assert is_captured(graphs, inputs)
        graph = graphs.find(inputs)
        assert graph is not None
        total = int(inputs.seq_lens.sum()) + 3
        found = (graph.run(inputs)[:, 3:] - total).T.tolist()
        assert found == [rows.tolist(), (rows + 10).tolist(), [1] * 3, (rows + 20).tolist()]
