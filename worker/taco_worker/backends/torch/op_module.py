"""The base of all ops of a plan as torch modules."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from taco_worker.backends.torch.step_buffers import StepBuffers, StepTokens

Parameters = Mapping[str, nn.Parameter]


class OpModule(nn.Module):
    """Runs one op on the buffers of a step."""

    def forward(self, step: StepBuffers, tokens: StepTokens | None) -> None:
        """`tokens` is None for the ops of the logits, which need none."""
        raise NotImplementedError
