"""Assignment of draft workers to workers."""

from dataclasses import dataclass, field

import pytest

from support.fake_drafter import FakeDrafter
from support.fake_worker import worker_info
from taco_proto.config import SchedulerConfig
from taco_proto.drafts import DrafterInfo, DraftRequest
from taco_scheduler.admission.validation import InvalidWorkerError, WorkerRejectedError
from taco_scheduler.core.engine import Engine
from taco_scheduler.core.replica import Replica
from taco_scheduler.speculation.draft_client import DraftClient
from taco_scheduler.speculation.drafter_pool import DrafterPool
from taco_scheduler.speculation.speculation import Speculation

DRAFTING = worker_info(max_draft_tokens=4)


@dataclass(eq=False)
class Link:
    info: DrafterInfo = field(default_factory=lambda: FakeDrafter().info)
    requests: list[DraftRequest] = field(default_factory=list)
    is_closed: bool = False
    reason: str = ""

    def send(self, request: DraftRequest) -> None:
        self.requests.append(request)

    def close(self, reason: str = "") -> None:
        self.is_closed = True
        self.reason = self.reason or reason


def make_engine(*infos: object) -> Engine:
    engine = Engine(SchedulerConfig())
    for info in infos:
        engine.attach(info)  # type: ignore[arg-type]
    return engine


def speculations(engine: Engine) -> list[Speculation]:
    return [replica.speculation for replica in engine.replicas]


def drafted_for(engine: Engine) -> list[bool]:
    return [replica.speculation.has_draft_worker for replica in engine.replicas]


def test_each_draft_worker_takes_a_worker_without() -> None:
    engine, pool = make_engine(DRAFTING, DRAFTING), DrafterPool()
    links = [Link(), Link(), Link()]
    pool.attach(links[0], speculations(engine))
    assert drafted_for(engine) == [True, False]
    pool.attach(links[1], speculations(engine))
    assert drafted_for(engine) == [True, True]
    with pytest.raises(WorkerRejectedError):
        pool.attach(links[2], speculations(engine))
    assert [link.is_closed for link in links] == [False, False, True]
    pool.remove(links[0], "gone")
    assert drafted_for(engine) == [False, True]
    again = Link()
    pool.attach(again, speculations(engine))
    assert drafted_for(engine) == [True, True]


def test_workers_that_verify_nothing_are_passed_over() -> None:
    engine, pool = make_engine(worker_info(), DRAFTING), DrafterPool()
    pool.attach(Link(), speculations(engine))
    assert drafted_for(engine) == [False, True]


def test_a_draft_worker_that_fits_no_worker_gets_the_reason() -> None:
    engine, pool = make_engine(DRAFTING), DrafterPool()
    link = Link(FakeDrafter(vocab_size=65).info)
    with pytest.raises(InvalidWorkerError, match="a vocabulary of 65 tokens"):
        pool.attach(link, speculations(engine))
    assert link.is_closed
    assert pool.links == []


def test_draft_workers_wait_for_workers() -> None:
    engine, pool = make_engine(), DrafterPool()
    links = [Link(FakeDrafter(vocab_size=65).info), Link(), Link()]
    for link in links:
        pool.attach(link, speculations(engine))
    pool.add_replica(engine.attach(DRAFTING).speculation)
    assert links[0].is_closed
    assert "vocabulary" in links[0].reason
    assert drafted_for(engine) == [True]
    assert pool.links == links[1:]
    pool.add_replica(engine.attach(DRAFTING).speculation)
    assert drafted_for(engine) == [True, True]


def test_a_draft_worker_is_removed_with_its_worker_and_may_connect_again() -> None:
    engine, pool = make_engine(DRAFTING, DRAFTING), DrafterPool()
    link = Link()
    pool.attach(link, speculations(engine))
    lost: Replica = engine.replicas[0]
    engine.on_worker_lost(lost)
    pool.remove_replica(lost.speculation)
    assert link.is_closed
    assert not link.reason, "it did nothing wrong"
    pool.attach(Link(), speculations(engine))
    assert drafted_for(engine) == [True]


def test_a_draft_worker_that_hangs_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, pool = make_engine(DRAFTING), DrafterPool()
    link, waiting = Link(), Link()
    pool.attach(link, speculations(engine))
    monkeypatch.setattr(DraftClient, "stall_deadline", lambda self, timeout: 100.0 + timeout)
    pool.remove_stalled(219.0, 120.0)
    assert not link.is_closed
    pool.remove_stalled(220.0, 120.0)
    assert link.is_closed
    assert not link.reason, "it may connect again"
    assert drafted_for(engine) == [False]
    pool.attach(waiting, ())
    pool.remove_stalled(220.0, 120.0)
    assert pool.links == [waiting], "without a worker it owes nothing"
