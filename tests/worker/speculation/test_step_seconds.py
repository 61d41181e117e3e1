"""The speculator times only steps that were waited for."""

from __future__ import annotations

import pytest

from support.speculators import make_speculator
from taco_worker.speculation.speculator import Speculator


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


def test_launched_steps_and_their_successors_are_not_timed() -> None:
    # Two prompt chunks on a GPU, the step that waits for them, and decodes.
    steps = ((1, True), (512, False), (300, False), (2, True), (3, True), (4, True))
    assert run(make_speculator(), *steps) == [1, 3, 4]
