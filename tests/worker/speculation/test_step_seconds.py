"""The speculator times only steps that were waited for."""

from __future__ import annotations

import pytest
import torch

from taco_worker.batch.input_batch import InputBatch
from taco_worker.batch.token_table import make_token_table
from taco_worker.devices.transfers import Transfers
from taco_worker.speculation.speculator import Speculator


@pytest.fixture
def speculator() -> Speculator:
    batch = InputBatch(
        max_num_seqs=2,
        max_model_len=32,
        block_size=16,
        num_blocks=4,
        vocab_size=100,
        eos_token_ids=(),
        tokens=make_token_table(2, 32, Transfers(torch.device("cpu"))),
    )
    return Speculator(None, batch, vocab_size=100, max_draft_tokens=4, max_tree_paths=0)


def run(speculator: Speculator, *steps: tuple[int, bool]) -> list[int]:
    """Records the sizes of the timed steps."""
    observed: list[int] = []
    patch = pytest.MonkeyPatch()
    patch.setattr(
        speculator._selector, "observe_step", lambda size, _seconds: observed.append(size)
    )
    for num_tokens, is_done in steps:
        speculator.end_step(num_tokens, is_done=is_done)
    patch.undo()
    return observed


def test_launched_steps_and_their_successors_are_not_timed(speculator: Speculator) -> None:
    # Two prompt chunks on a GPU, the step that waits for them, and decodes.
    steps = ((1, True), (512, False), (300, False), (2, True), (3, True), (4, True))
    assert run(speculator, *steps) == [1, 3, 4]
