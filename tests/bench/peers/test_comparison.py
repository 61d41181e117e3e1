"""A run's record: the best peer, and which goals are reached."""

from typing import Any

import pytest

from bench.peers.comparison import Verdict, record_of, verdicts

BITS = {
    "taco": 16,
    "taco-int8": 8,
    "taco-http": 16,
    "vllm": 16,
    "openvino": 16,
    "openvino-int8": 8,
}


def record(
    workload: str, figure: str, values: dict[str, list[float]], model: str = "qwen2-0.5b"
) -> dict[str, Any]:
    ours = [name for name in values if name.startswith("taco")]
    return {
        "model": model,
        "engines": {name: {"weight_bits": BITS[name]} for name in values},
        "workloads": {workload: {"shape": workload, "figures": {figure: record_of(values, ours)}}},
    }


def verdict_of(workload: str, figure: str, values: dict[str, list[float]], ours: str) -> Verdict:
    (verdict,) = (
        verdict for verdict in verdicts(record(workload, figure, values)) if verdict.ours == ours
    )
    return verdict


@pytest.mark.parametrize(("figure", "best"), [("tpot_ms", "openvino"), ("tokens_per_s", "vllm")])
def test_the_best_peer_is_the_one_with_the_best_median(figure: str, best: str) -> None:
    values = {"taco": [40.0, 41.0], "vllm": [53.0, 54.0], "openvino": [45.0, 46.0]}
    assert verdict_of("single", figure, values, "taco").theirs == best


def test_a_shape_has_its_own_goals() -> None:
    values = {"taco": [130.0, 131.0], "vllm": [100.0, 100.0]}
    (verdict,) = verdicts(record("batch", "tokens_per_s", values, model="olmoe-4-layers"))
    assert (verdict.goal, verdict.outcome) == ("≥ 1.3", "met")
    assert verdict_of("batch", "tokens_per_s", values, "taco").goal == "≥ 1.65"


def test_two_noisy_pairs_are_undecided() -> None:
    values = {"taco": [36.0, 319.0], "vllm": [100.0, 100.0]}
    assert verdict_of("single", "tpot_ms", values, "taco").outcome == "undecided"


def test_int8_peers_are_compared_with_int8_only() -> None:
    values = {
        "taco": [40.0, 41.0],
        "taco-int8": [20.0, 20.0],
        "openvino": [45.0, 46.0],
        "openvino-int8": [28.0, 28.0],
    }
    assert verdict_of("single", "tpot_ms", values, "taco").theirs == "openvino"
    assert verdict_of("single", "tpot_ms", values, "taco-int8").theirs == "openvino-int8"


@pytest.mark.parametrize(
    ("ours", "outcome"),
    [
        ([80.0, 80.0, 80.0], "met"),
        ([80.0, 82.0, 84.0], "met"),  # 0.82, from 0.77 to 0.87: within 10% of 0.85
        ([70.0, 80.0, 95.0], "undecided"),  # 0.81 reaches it, but the interval ends at 1.19
        ([84.0, 86.0, 87.0], "undecided"),  # 0.86, from 0.82 to 0.90
        ([90.0, 90.0, 90.0], "missed"),
    ],
)
def test_a_goal_is_met_only_by_a_narrow_interval(ours: list[float], outcome: str) -> None:
    verdict = verdict_of("single", "tpot_ms", {"taco": ours, "vllm": [100.0] * 3}, "taco")
    assert verdict.goal == "≤ 0.85"
    assert verdict.outcome == outcome


def test_higher_throughput_is_better() -> None:
    values = {"taco": [700.0, 710.0], "vllm": [400.0, 400.0]}
    assert verdict_of("batch", "tokens_per_s", values, "taco").outcome == "met"
    values = {"taco": [400.0, 400.0], "vllm": [700.0, 710.0]}
    assert verdict_of("batch", "tokens_per_s", values, "taco").outcome == "missed"


def test_http_is_compared_with_the_engine_in_process() -> None:
    values = {"taco": [100.0, 100.0], "taco-http": [95.0, 95.0], "vllm": [300.0, 300.0]}
    verdict = verdict_of("batch", "tokens_per_s", values, "taco-http")
    assert verdict.theirs == "taco"
    assert verdict.goal == "≥ 0.92"
    assert verdict.outcome == "met"


@pytest.mark.parametrize(
    ("seconds", "outcome"),
    [
        ([1.5], "met"),
        ([1.4, 1.5, 1.7], "met"),
        ([1.4, 1.5, 1.8], "undecided"),
        ([1.5, 1.7, 1.8], "undecided"),
        ([1.7, 1.8, 1.9], "missed"),
    ],
)
def test_the_start_has_an_absolute_limit(seconds: list[float], outcome: str) -> None:
    values = {"taco": seconds, "openvino": [1.0] * len(seconds)}
    verdict = verdict_of("start", "seconds", values, "taco")
    assert verdict.theirs == "openvino"
    assert verdict.goal == "≤ 1.6 s"
    assert verdict.outcome == outcome


def test_other_shapes_have_a_ratio_and_no_goal() -> None:
    values = {"taco": [30.0, 30.0], "vllm": [60.0, 60.0]}
    verdict = verdict_of("8x64/64", "tokens_per_s", values, "taco")
    assert verdict.goal == ""
    assert verdict.outcome == ""
    assert verdict.interval is not None
    assert verdict.interval.ratio == pytest.approx(0.5)


def test_one_round_gives_medians_and_no_verdict() -> None:
    verdict = verdict_of("single", "tpot_ms", {"taco": [40.0], "vllm": [50.0]}, "taco")
    assert verdict.our_median == 40.0
    assert verdict.interval is None
    assert verdict.outcome == ""
