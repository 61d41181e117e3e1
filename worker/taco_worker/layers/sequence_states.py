"""A step's sequences and their recurrent states on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from taco_worker.models.plan.ops.recurrence import StateEntry
from taco_worker.models.step_states import entry_starts


@dataclass(frozen=True, slots=True)
class SequenceStates:
    """The tokens of each sequence in a step, and the rows of its states; int32 on the device.

    Attributes:
        query_start: [num_seqs + 1], first token of each sequence; sequences may have no tokens.
        rows, sources, saved_tokens, saved_rows: [num_seqs], as in `StepStates`.
        query_lens_host: tokens of each sequence on the host, an upper bound in CUDA graphs.
    """

    query_start: Tensor
    rows: Tensor
    sources: Tensor
    saved_tokens: Tensor
    saved_rows: Tensor
    query_lens_host: Sequence[int]


class StateMemory:
    """The states of all rows.

    Memory is not initialised: a sequence that begins reads none.

    Attributes:
        entries: float32 [num_rows, *shape] of each op, views.
    """

    def __init__(self, entries: Sequence[StateEntry], num_rows: int, device: torch.device) -> None:
        starts = entry_starts(entries)
        rows = torch.empty((num_rows, starts[-1]), dtype=torch.float32, device=device)
        self.entries = [
            rows[:, start : start + entry.size].unflatten(1, entry.shape)
            for entry, start in zip(entries, starts, strict=False)
        ]
