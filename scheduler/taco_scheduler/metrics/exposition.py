"""The engine's metrics in the Prometheus exposition format, with vLLM's names where it has them.

A collector reads the engine when metrics are requested. Steps do no work for it.
"""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

from taco_common.metrics import Families
from taco_proto.steps import RowErrorCode
from taco_scheduler.admission.rejections import RejectionReason
from taco_scheduler.core.engine import Engine
from taco_scheduler.core.replica import Replica
from taco_scheduler.metrics.speculation import speculation_metrics


def engine_registry(engine: Engine) -> CollectorRegistry:
    """A registry with the metrics of one engine."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(EngineCollector(engine))
    return registry


class EngineCollector(Collector):
    """Collects the metrics of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._model = ""

    def collect(self) -> Iterator[Metric]:
        # Without workers, the label of the last model remains, so that series do not break.
        if self._engine.replicas:
            self._model = self._engine.replicas[0].info.model
        make = Families(model_name=self._model)
        yield from self._gauges(make)
        yield self._cache_config()
        yield from self._worker_gauges(make)
        yield from self._worker_counters()
        yield from self._counters(make)
        yield from self._rejections(make)
        yield self._row_errors(make)
        yield from self._histograms(make)
        yield from speculation_metrics(self._engine.counters.speculation, make)

    def _gauges(self, make: Families) -> Iterator[Metric]:
        engine = self._engine
        gauges: dict[str, tuple[str, float]] = {
            "vllm:num_requests_running": ("Sequences that run in a batch.", engine.num_running),
            "vllm:num_requests_waiting": ("Sequences that wait in a queue.", engine.num_waiting),
            "vllm:kv_cache_usage_perc": (
                "Used share of the device KV blocks, 0 to 1.",
                engine.kv_usage,
            ),
            "vllm:gpu_cache_usage_perc": (
                "The same as vllm:kv_cache_usage_perc, under its older name.",
                engine.kv_usage,
            ),
            "vllm:cpu_cache_usage_perc": (
                "Used share of the host KV blocks, 0 to 1.",
                engine.host_kv_usage,
            ),
            # A preempted sequence waits: it is computed again or found in the cache.
            "vllm:num_requests_swapped": ("Always 0; preempted sequences wait.", 0),
            "taco:waiting_tokens": (
                "Prompt tokens of waiting requests.",
                engine.num_waiting_tokens,
            ),
        }
        for name, (text, value) in gauges.items():
            yield make.gauge(name, text, value)

    def _cache_config(self) -> Metric:
        """1, with the KV memory of all workers as labels."""
        workers = [replica.info for replica in self._engine.replicas]
        make = Families(
            model_name=self._model,
            block_size=str(workers[0].block_size if workers else 0),
            num_gpu_blocks=str(sum(info.num_blocks for info in workers)),
            num_cpu_blocks=str(sum(info.num_host_blocks for info in workers)),
        )
        text = "KV blocks of all workers, on their devices and in host memory."
        return make.gauge("vllm:cache_config_info", text, 1)

    def _worker_gauges(self, make: Families) -> Iterator[Metric]:
        replicas = self._engine.replicas
        yield make.gauge("taco:workers", "Attached workers.", len(replicas))
        gauges: dict[str, tuple[str, Callable[[Replica], float]]] = {
            "running": ("Sequences that run on the worker.", lambda r: r.num_running),
            "waiting": ("Sequences that wait for the worker.", lambda r: r.waiting.num_sequences),
            "load": ("Estimated work of the worker, in prompt tokens.", lambda r: r.load),
            "kv_usage": ("Used share of the worker's KV blocks, 0 to 1.", lambda r: r.kv_usage),
            "pinned_blocks": ("Pinned KV blocks of the worker.", lambda r: r.num_pinned_blocks),
            "state_snapshots": (
                "Recurrent states of sequences that the worker has saved.",
                lambda r: r.num_used_snapshots,
            ),
            "licensed": (
                "1 if the worker may take new requests, else 0.",
                lambda r: float(r.license.is_valid),
            ),
        }
        for name, (text, value_of) in gauges.items():
            values = {replica.name: value_of(replica) for replica in replicas}
            yield make.gauges(f"taco:worker_{name}", text, "worker", values)

    def _worker_counters(self) -> Iterator[Metric]:
        """Counters of each worker, which restart when it attaches again."""
        labels = ["model_name", "worker"]
        hits = CounterMetricFamily(
            "taco:worker_block_hits",
            "Blocks of admitted sequences by the tier that held them; none: not cached.",
            labels=[*labels, "tier"],
        )
        disk = CounterMetricFamily(
            "taco:worker_disk_blocks",
            "Blocks that the disk tier wrote, read, or failed on.",
            labels=[*labels, "outcome"],
        )
        for replica in self._engine.replicas:
            blocks = replica.worker.blocks
            tiers = {
                "device": blocks.hits.device,
                "host": blocks.hits.host,
                "none": blocks.hits.missed,
            }
            for tier, count in tiers.items():
                hits.add_metric([self._model, replica.name, tier], count)
            for outcome, count in blocks.disk.outcomes.items():
                disk.add_metric([self._model, replica.name, outcome], count)
        yield from (hits, disk)

    def _counters(self, make: Families) -> Iterator[Metric]:
        counters = self._engine.counters
        totals: dict[str, tuple[str, int]] = {
            "vllm:num_preemptions": ("Preemptions.", counters.num_preemptions),
            "vllm:prefix_cache_queries": (
                "Tokens looked up in the prefix cache.",
                counters.prefix_cache_queries,
            ),
            "vllm:prefix_cache_hits": (
                "Tokens found in the prefix cache.",
                counters.prefix_cache_hits,
            ),
            "taco:prefix_pins": ("Pinned prompt prefixes.", counters.num_pins),
            "taco:rejected_prefix_pins": (
                "Prompt prefixes that could not be pinned.",
                counters.num_rejected_pins,
            ),
            "taco:refused_prefix_pins": (
                "The same as taco:rejected_prefix_pins, under its older name.",
                counters.num_rejected_pins,
            ),
            "vllm:prompt_tokens": ("Prompt tokens.", counters.prompt_tokens),
            "vllm:generation_tokens": ("Generated tokens.", counters.generation_tokens),
            "taco:steps": ("Steps planned.", counters.num_steps),
            "taco:failed_steps": ("Steps that failed.", counters.num_failed_steps),
            "taco:lost_workers": (
                "Workers lost to a crash, a stall or a heartbeat timeout.",
                counters.num_lost_workers,
            ),
            "taco:late_drafts": (
                "Draft requests that were too late for their step.",
                counters.num_late_drafts,
            ),
            "taco:invalid_drafts": (
                "Invalid drafts that were dropped.",
                counters.num_invalid_drafts,
            ),
        }
        for name, (text, value) in totals.items():
            yield make.counter(name, text, value)

    def _rejections(self, make: Families) -> Iterator[Metric]:
        names = {
            "taco:rejections": "Rejected requests by reason.",
            "taco:refusals": "The same as taco:rejections, under its older name.",
        }
        rejections = self._engine.counters.rejections
        values = {reason.value: rejections[reason] for reason in RejectionReason}
        for name, text in names.items():
            yield make.counters(name, text, "reason", values)

    def _row_errors(self, make: Families) -> Metric:
        errors = self._engine.counters.row_errors
        text = "Sequences that failed in a step that succeeded for the others."
        values = {code.name.lower(): errors[code] for code in RowErrorCode}
        return make.counters("taco:row_errors", text, "code", values)

    def _histograms(self, make: Families) -> Iterator[Metric]:
        counters = self._engine.counters
        histograms = {
            "iteration_tokens_total": ("Tokens a step.", counters.iteration_tokens),
            "request_queue_time_seconds": (
                "From arrival to the first step.",
                counters.queue_seconds,
            ),
            "request_prefill_time_seconds": (
                "From the first step to the first token.",
                counters.prefill_seconds,
            ),
            "request_decode_time_seconds": (
                "From the first token to the last.",
                counters.decode_seconds,
            ),
            "request_inference_time_seconds": (
                "From the first step to the last token.",
                counters.inference_seconds,
            ),
        }
        for name, (text, histogram) in histograms.items():
            yield make.histogram(f"vllm:{name}", text, histogram)
