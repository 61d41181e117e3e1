"""`bench.worker.cpu_step` on a small model."""

import pytest

from bench.worker import cpu_step
from bench.worker.cpu_step import PROMPT_LEN, TimedModel

pytestmark = pytest.mark.kernels


def test_the_parts_of_a_decode_step_are_those_of_a_decode_step() -> None:
    worker = cpu_step.load_worker("qwen2-tiny", None, "auto")
    timed = TimedModel(worker._runner._model)
    worker._runner._model = timed  # type: ignore[assignment]
    for count in (1, 3):
        cpu_step.prefill(worker, count, PROMPT_LEN)
        of_prompt = timed.layers
        found = cpu_step.measure_decode(worker, timed, count)
        assert found["whole"] == pytest.approx(found["layers"] + found["last"] + found["host"])
        assert min(found["whole"], found["layers"], found["last"]) > 0
        assert found["layers"] != of_prompt


def test_each_sequence_has_its_own_blocks_and_follows_its_prompt() -> None:
    inputs = cpu_step.step_inputs(3, 2)
    assert list(inputs.query_start) == [0, 2, 4, 6]
    assert list(inputs.positions) == [PROMPT_LEN, PROMPT_LEN + 1] * 3
    assert len(set(inputs.block_tables.ravel())) == inputs.block_tables.size
