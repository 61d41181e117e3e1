"""Speculators without a model."""

from __future__ import annotations

import torch

from taco_worker.batch.input_batch import InputBatch
from taco_worker.batch.token_table import make_token_table
from taco_worker.devices.transfers import Transfers
from taco_worker.speculation.drafter import Drafter
from taco_worker.speculation.speculator import Speculator


def make_speculator(drafter: Drafter | None = None) -> Speculator:
    """Of an empty batch of four slots."""
    batch = InputBatch(
        max_num_seqs=4,
        max_model_len=32,
        block_size=16,
        num_blocks=8,
        vocab_size=100,
        eos_token_ids=(),
        tokens=make_token_table(4, 32, Transfers(torch.device("cpu"))),
    )
    return Speculator(drafter, batch, vocab_size=100, max_draft_tokens=4, max_tree_paths=0)
