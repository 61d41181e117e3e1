"""Runs a plan without attention, for rows that are independent of each other."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from taco_worker.models.step_model import ModelInput, StepModel

_BLOCK_SIZE = 16


class RowModel:
    """Attributes:
    model: its plan has an op Input and no KV entries.
    """

    def __init__(self, model: StepModel) -> None:
        """The weights of `model` are loaded."""
        self.model = model
        model.allocate_kv(1, _BLOCK_SIZE, _BLOCK_SIZE)

    def __call__(self, rows: Tensor) -> Tensor:
        """[num_rows, columns of the op Input] to [num_rows, hidden_size]."""
        count = rows.shape[0]
        return self.model.forward(
            ModelInput(
                token_ids=torch.zeros(count, dtype=torch.int32, device=rows.device),
                positions=np.zeros(count, dtype=np.int32),
                query_start=np.arange(count + 1, dtype=np.int32),
                seq_lens=np.ones(count, dtype=np.int32),
                block_tables=np.zeros((count, 1), dtype=np.int32),
                output_rows=np.arange(count, dtype=np.int32),
                columns=rows.contiguous(),
            )
        )

    def logits(self, rows: Tensor) -> Tensor:
        """The plan's logits, float32 [num_rows, vocab_size]."""
        return self.model.compute_logits(self(rows))
