"""A draft worker's metrics, made when somebody scrapes."""

from collections.abc import Iterator

from prometheus_client import Metric

from taco_common.metrics import Families
from taco_draft.drafter_link import Runner
from taco_worker.model_service import ModelService


def draft_metrics(runner: Runner, service: ModelService) -> Iterator[Metric]:
    info, meter = runner.info, runner.meter
    make = Families(model_name=info.model, draft_worker=info.name)
    yield make.gauge(
        "taco:draft_worker_attached", "1 while the scheduler has it.", float(service.is_attached)
    )
    yield make.gauge(
        "taco:draft_worker_queued_requests",
        "Requests that wait for the model's thread.",
        service.thread.num_waiting,
    )
    yield make.histogram(
        "taco:draft_worker_request_seconds", "Time of a request for drafts.", meter.seconds
    )
    yield make.counter(
        "taco:draft_worker_failed_requests", "Requests that failed.", meter.num_failed
    )
    yield make.counter("taco:draft_worker_tokens", "Tokens that were drafted.", meter.num_drafts)
