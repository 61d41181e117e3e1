"""Figures computed from measurements, and the inputs of the GPU run."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import triton
from triton.runtime.jit import JITFunction

from bench.gpu.harness.compile_only import compile_only
from bench.gpu.harness.goals import GOALS, NOT_MEASURED
from bench.gpu.harness.trace import Trace, summarize
from bench.gpu.inputs.llama import LLAMA_3_8B, Shape
from bench.gpu.inputs.mix import SHAREGPT_LIKE, Mix
from bench.gpu.inputs.plans import Plans
from bench.gpu.inputs.successors import Successors
from bench.gpu.inputs.tokens import Token, differ
from bench.gpu.parts.correctness import run_suite
from bench.gpu.parts.machine import Ceilings
from bench.peers.goals import MET, MISSED
from taco_proto.steps import IntArray, WorkerInfo

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("batch", "milliseconds"), [(1, 3.52), (32, 4.49), (128, 7.49), (256, 12.85)]
)
def test_lower_bounds_of_an_h200(batch: int, milliseconds: float) -> None:
    h200 = Ceilings(4300, 4300, 790, 50, 50)
    floor = Shape.of(LLAMA_3_8B).decode_floor_ms(batch, 1024, h200)
    assert floor == pytest.approx(milliseconds, abs=0.05)


def event(start: float, duration: float, kind: str = "kernel", name: str = "k") -> dict[str, Any]:
    return {"ph": "X", "cat": kind, "name": name, "ts": start, "dur": duration}


def test_idle_time_is_time_without_work_on_any_stream() -> None:
    found = Trace()
    events = [
        event(100, 40, name="a"),
        event(120, 40, name="b"),  # beside it, on another stream
        event(125, 5, name="b"),
        event(180, 20, kind="gpu_memcpy", name="copy"),
        event(0, 500, kind="cuda_runtime", name="cudaLaunchKernel"),
        event(50, 7, kind="cuda_runtime", name="cudaEventSynchronize"),
        event(0, 900, kind="user_annotation"),
        {"ph": "i", "name": "no duration", "ts": 1},
    ]
    random.Random(0).shuffle(events)
    summarize(events, found)
    assert found.span_ms == pytest.approx(0.1)
    assert found.idle_share == pytest.approx(0.2)
    assert found.waits_ms == pytest.approx(0.007)
    assert [(top["name"], top["count"]) for top in found.top] == [("b", 2), ("a", 1), ("copy", 1)]


def test_trimming_drops_both_ends() -> None:
    found = Trace()
    steady = [event(start, 10) for start in range(250, 750, 10)]
    summarize([event(0, 10), *steady, event(990, 10)], found, trim=0.25)
    assert found.idle_share == pytest.approx(0.0)
    assert found.span_ms == pytest.approx(0.5)


def test_a_trace_of_nothing_is_empty() -> None:
    found = Trace()
    summarize([event(0, 10, kind="cpu_op")], found)
    assert found == Trace()


INFO = WorkerInfo(
    name="w",
    model="m",
    max_model_len=512,
    vocab_size=100,
    eos_token_ids=(),
    block_size=16,
    num_blocks=40,
    max_num_seqs=8,
    max_num_batched_tokens=64,
    max_logprobs=5,
)


@pytest.mark.parametrize(("prompt_len", "chunk"), [(20, 64), (64, 64), (100, 64), (20, 1000)])
def test_prefills_compute_each_prompt_once(prompt_len: int, chunk: int) -> None:
    plans = [*Plans(INFO, prompt_len, room=3).prefills(4, chunk)]
    computed = np.zeros(4, dtype=int)
    for plan in plans:
        np.add.at(computed, plan.slots, plan.num_tokens)
        assert plan.num_tokens.sum() <= max(chunk, prompt_len)
        assert plan.num_tokens.max() <= chunk
    assert (computed == prompt_len).all()
    assert [plan.step_id for plan in plans] == list(range(len(plans)))
    joined = plans[0].joined
    assert joined is not None
    assert all(plan.joined is None for plan in plans[1:])
    assert np.unique(joined.block_ids).size == joined.num_blocks.sum()
    assert (joined.num_blocks * 16 > prompt_len + 3).all()


def test_sequences_are_limited_by_rows_and_blocks() -> None:
    assert Plans(INFO, 10, room=2).most_sequences == 8
    assert Plans(INFO, 100, room=2).most_sequences == 40 // 7
    assert Plans(INFO, 1000, room=2).most_sequences == 0


def test_verification_plans_follow_the_known_tokens() -> None:
    plans = Plans(INFO, 20, room=3)
    known = np.array([21, 25], dtype=np.int32)
    plan = plans.verify(4, known)
    assert plan.drafts is not None
    assert plan.max_drafts.tolist() == plan.drafts.num_drafts.tolist() == [4, 4]
    assert plan.drafts.num_tokens.tolist() == [21, 25]
    known += 1  # what the plan says stays
    assert plan.drafts.num_tokens.tolist() == [21, 25]
    assert plan.drafts.token_ids.size == 8
    assert plan.drafts.token_ids.tolist() != next_drafts(plans, known)
    without = plans.verify(0, known)
    assert without.drafts is None
    assert not without.max_drafts.size
    assert [plan.step_id, without.step_id] == [0, 2]


def next_drafts(plans: Plans, known: IntArray) -> list[int]:
    drafts = plans.verify(4, known).drafts
    assert drafts is not None
    return drafts.token_ids.tolist()


def test_successors_visit_all_tokens_except_special_ones() -> None:
    successors = Successors.random(100)
    answer = successors.answer([3, 20], 84)
    assert sorted(answer) == list(range(16, 100))
    assert answer[-1] == 20
    assert successors.following[:16].tolist() == list(range(16))


def test_drafts_are_wrong_at_the_configured_rate() -> None:
    right = Successors.random(1016)
    other = right.wrong_for(0.2)
    assert int((right.following != other.following).sum()) == 200
    assert sorted(other.following.tolist()) == list(range(1016))
    embedding = torch.randn(1016, 64)
    best = (embedding @ other.lm_head(embedding).T).argmax(-1)
    assert best.tolist() == other.following.tolist()


def test_a_mix_is_deterministic_and_within_its_lengths() -> None:
    requests = SHAREGPT_LIKE.requests()
    assert requests == SHAREGPT_LIKE.requests()
    assert requests != SHAREGPT_LIKE.requests(seed=1)
    lengths = np.array([(len(prompt), output) for prompt, output in requests])
    assert len(requests) == SHAREGPT_LIKE.count
    assert lengths.min() >= 4
    assert lengths.max() <= 1024
    assert np.median(lengths, axis=0) == pytest.approx([120, 150], rel=0.15)
    assert all(
        16 <= token_id < 50 for prompt, _ in Mix(3, 9, 9, 99, 50).requests() for token_id in prompt
    )


@pytest.mark.parametrize(
    ("ours", "lead", "close", "is_different"),
    [
        ([1, 2, 3], 9.0, 0.0, False),
        ([1, 7, 3], 0.0, 0.0, True),  # in float32 none may differ
        ([1, 7, 7], 0.049, 0.05, False),
        ([1, 7, 7], 0.05, 0.05, True),
    ],
)
def test_sequences_may_diverge_where_two_tokens_are_close(
    ours: list[int], lead: float, close: float, is_different: bool
) -> None:
    wanted = [Token(1, 9.0), Token(2, lead), Token(3, 9.0)]
    assert differ([Token(token_id, 9.0) for token_id in ours], wanted, close) is is_different


SUITE = """
import pytest
def test_right(): pass
def test_wrong(): assert 1 == 2
@pytest.mark.skip
def test_skipped(): pass
@pytest.fixture
def broken(): raise RuntimeError("no such thing")
def test_broken(broken): pass
"""


def test_a_suite_is_counted_and_its_failures_are_kept(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    found = run_suite(str(tmp_path / "test_suite.py"), 300, on_gpu=False)
    assert (found["ran"], found["failed"], found["skipped"]) == (3, 2, 1)
    assert found["in_time"]
    first, second = found["failures"]
    assert first.startswith("::test_wrong:")
    assert "assert 1 == 2" in first
    assert "RuntimeError: no such thing" in second


def test_compiling_launches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves launches as they were."""
    warm: list[bool] = []

    def run(kernel: object, *args: object, grid: object, warmup: bool) -> None:
        warm.append(warmup)

    monkeypatch.setattr(JITFunction, "run", run)

    @triton.jit
    def kernel(x):  # type: ignore[no-untyped-def]
        return

    with compile_only():
        kernel[(1,)](1)
    kernel[(1,)](1)
    assert warm == [True, False]


def test_goals_of_quantized_models() -> None:
    """The worst format and number of rows; a format's matrices count by the time of each."""
    figures: dict[str, Any] = {
        "bf16: decode 1x1024": {"itl_ms": 5.0},
        "fp8: decode 1x1024": {"itl_ms": 3.0},
        "fp8 qkv, 16 rows": {"us": 10.0, "share": 0.3, "right": True},
        "fp8 down, 16 rows": {"us": 30.0, "share": 0.9, "right": True},
        "fp8 blocks down, 16 rows": {"us": 30.0, "share": 0.8, "right": True},
        "torch, fp8 down, 16 rows": {"us": 30.0, "share": 0.1, "right": True},
        "fp8 down, 32 rows": {"us": 30.0, "share": 0.2, "right": False},
    }
    found = {goal.text: goal.outcome(figures) for goal in GOALS if goal.part == "quantized"}
    assert found == {
        "products with codes that are right": (pytest.approx(4 / 5), MISSED),
        "codes at 16 rows, of the copy bandwidth": (pytest.approx(0.75), MET),
        "TPOT of FP8": (pytest.approx(0.6), MET),
        "TPOT of 4 bits": (None, NOT_MEASURED),
    }
