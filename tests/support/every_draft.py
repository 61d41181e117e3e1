"""Has every draft verified, where a test wants to see that happen."""

from __future__ import annotations

from typing import Any

import pytest

from taco_kernels.native.draft_choice import DraftChoice


def verify_every_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of all sizes are believed to take the same time, and no draft to be wrong for long."""
    create, observe_step = DraftChoice.__init__, DraftChoice.observe_step

    def create_with_flat_times(choice: DraftChoice, *arguments: Any) -> None:
        create(choice, *arguments)
        for num_tokens in (1, 2**15):
            observe_step(choice, num_tokens, 1.0)

    monkeypatch.setattr(DraftChoice, "__init__", create_with_flat_times)
    monkeypatch.setattr(DraftChoice, "observe_step", lambda *_: None)
    monkeypatch.setattr(DraftChoice, "learn", lambda *_: None)
