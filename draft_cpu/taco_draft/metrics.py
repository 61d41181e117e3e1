"""A draft worker's Prometheus metrics, computed on each scrape."""

from collections.abc import Iterator

from prometheus_client import Metric

from taco_common.metrics import Families
from taco_draft.scheduler_link import Runner
from taco_worker.model_service import ModelService


def draft_metrics(runner: Runner, service: ModelService) -> Iterator[Metric]:
    info, counters = runner.info, runner.counters
    make = Families(model_name=info.model, draft_worker=info.name)
    yield make.gauge(
        "taco:draft_worker_attached",
        "1 while the draft worker is attached to the scheduler, else 0.",
        float(service.is_attached),
    )
    yield make.gauge(
        "taco:draft_worker_queued_requests",
        "Draft requests waiting for the model's thread.",
        service.thread.num_waiting,
    )
    yield make.histogram(
        "taco:draft_worker_request_seconds",
        "Duration of a draft request in seconds.",
        counters.seconds,
    )
    yield make.counter(
        "taco:draft_worker_failed_requests", "Draft requests that failed.", counters.num_failed
    )
    yield make.counter("taco:draft_worker_tokens", "Drafted tokens.", counters.num_drafts)
