"""Builds a worker's Prometheus metrics at each scrape."""

from collections.abc import Iterator

from prometheus_client import Metric

from taco_common.metrics import Families
from taco_worker.model_service import ModelService
from taco_worker.scheduler_link import Executor


def worker_metrics(worker: Executor, service: ModelService) -> Iterator[Metric]:
    info, step_metrics = worker.info, worker.step_metrics
    make = Families(model_name=info.model, worker=info.name)
    yield make.gauge(
        "taco:worker_attached",
        "1 while the worker is attached to the scheduler.",
        float(service.is_attached),
    )
    yield make.gauge(
        "taco:worker_queued_jobs",
        "Plans and other jobs that wait in the queue of the model's thread.",
        service.thread.num_waiting,
    )
    yield make.histogram(
        "taco:worker_step_seconds", "Duration of a step in seconds.", step_metrics.seconds
    )
    yield make.counter(
        "taco:worker_failed_steps", "Steps that failed on the worker.", step_metrics.num_failed
    )
    tokens = {
        "computed": step_metrics.num_computed,
        "given": step_metrics.num_given,
        "forced": step_metrics.num_forced,
    }
    yield make.counters(
        "taco:worker_tokens", "Tokens of the worker's steps, by kind.", "kind", tokens
    )
    blocks = {
        "device": info.num_blocks,
        "host": info.num_host_blocks,
        "disk": info.num_disk_blocks,
    }
    yield make.gauges("taco:worker_blocks", "Capacity in KV blocks, by tier.", "tier", blocks)
    yield make.gauges(
        "taco:worker_memory_bytes", "Memory in bytes, by use.", "use", worker.memory_bytes()
    )
    yield make.gauge("taco:worker_graphs", "Captured CUDA graphs.", worker.num_graphs)
