"""Has every draft verified, where a test wants to see that happen."""

from __future__ import annotations

from typing import Any

import pytest

from taco_kernels.native.draft_selector import DraftSelector


def verify_every_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of all sizes are believed to take the same time, and no draft to be wrong for long."""
    create, observe_step = DraftSelector.__init__, DraftSelector.observe_step

    def create_with_flat_times(selector: DraftSelector, *arguments: Any) -> None:
        create(selector, *arguments)
        for num_tokens in (1, 2**15):
            observe_step(selector, num_tokens, 1.0)

    monkeypatch.setattr(DraftSelector, "__init__", create_with_flat_times)
    monkeypatch.setattr(DraftSelector, "observe_step", lambda *_: None)
    monkeypatch.setattr(DraftSelector, "learn", lambda *_: None)
