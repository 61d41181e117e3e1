from prometheus_client.parser import text_string_to_metric_families

from taco_gateway.metrics import GatewayMetrics
from taco_gateway.text.output.output_processor import TextUpdate
from taco_gateway.usage_and_latency import RequestStats

SCHEDULER = b"""# HELP vllm:num_requests_running Running.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m"} 3.0
# HELP vllm:e2e_request_latency_seconds The scheduler's idea of it.
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_bucket{le="+Inf",model_name="m"} 7.0
vllm:e2e_request_latency_seconds_count{model_name="m"} 7.0
vllm:e2e_request_latency_seconds_sum{model_name="m"} 7.0
# HELP vllm:num_preemptions_total Preemptions.
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{model_name="m"} 2.0
"""


def samples(exposition: bytes) -> dict[str, float]:
    """By name and labels, without those of the process; a sample that comes twice fails."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(exposition.decode()):
        if family.name.startswith(("process_", "python_", "taco:build_info")):
            continue
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k != "model_name"}
            key = sample.name + "".join(f" {k}={v}" for k, v in sorted(labels.items()))
            assert key not in found
            assert sample.labels["model_name"] == "m"
            found[key] = sample.value
    return found


def test_merges_with_the_scheduler_without_duplicates() -> None:
    metrics = GatewayMetrics("m")
    with RequestStats(metrics, 0.0, 2) as stats:
        assert metrics.num_active == 1
        stats.add(TextUpdate(0, token_ids=[7]))
        stats.add(TextUpdate(0, token_ids=[7] * 4, finish_reason="stop"))
        stats.add(TextUpdate(1, token_ids=[7] * 2, finish_reason="length"))
    assert stats.finish_reasons == ["stop", "length"]
    metrics.observe_params(300, 2, 7)
    metrics.observe_params(1, 1, None)
    metrics.observe_response(200)
    found = samples(metrics.exposition(SCHEDULER))
    assert found["vllm:num_requests_running"] == 3
    assert found["vllm:num_preemptions_total"] == 2
    assert found["vllm:e2e_request_latency_seconds_count"] == 1
    assert found["vllm:time_to_first_token_seconds_count"] == 1
    assert found["vllm:inter_token_latency_seconds_count"] == 4
    assert found["vllm:time_per_output_token_seconds_count"] == 4
    assert found["vllm:request_time_per_output_token_seconds_count"] == 2
    assert found["vllm:request_prompt_tokens_sum"] == 301
    assert found["vllm:request_prompt_tokens_bucket le=1.0"] == 1
    assert found["vllm:request_prompt_tokens_bucket le=500.0"] == 2
    assert found["vllm:request_generation_tokens_sum"] == 7
    assert found["vllm:request_generation_tokens_count"] == 2
    assert found["vllm:request_params_n_bucket le=1.0"] == 1
    assert found["vllm:request_params_n_sum"] == 3
    assert found["vllm:request_params_max_tokens_count"] == 1
    assert found["vllm:request_success_total finished_reason=stop"] == 1
    assert found["vllm:request_success_total finished_reason=length"] == 1
    assert found["vllm:request_success_total finished_reason=abort"] == 0
    assert found["taco:http_responses_total status=200"] == 1
    assert found["taco:http_requests_active"] == 0


def test_a_request_without_tokens_is_no_observation() -> None:
    metrics = GatewayMetrics("m")
    with RequestStats(metrics, 0.0, 1) as stats:
        assert stats.first_token_seconds() is None
    found = samples(metrics.exposition())
    assert found["vllm:e2e_request_latency_seconds_count"] == 0
    assert found["taco:http_requests_active"] == 0


def test_usage_counts_each_prompt_once_and_what_was_cached_before() -> None:
    """The second sequence of a prompt finds the blocks of the first one in the cache."""
    with RequestStats(GatewayMetrics("m"), 0.0, 2) as stats:
        for index, num_prompt, num_cached in [(0, 9, 4), (1, 9, 8), (2, 5, 0), (3, 5, 4)]:
            stats.add(
                TextUpdate(
                    index,
                    token_ids=[7] * (index + 1),
                    num_prompt_tokens=num_prompt,
                    num_cached_tokens=num_cached,
                )
            )
    usage = stats.usage()
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (14, 10, 24)
    assert usage.prompt_tokens_details.cached_tokens == 4
