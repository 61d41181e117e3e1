"""Leases in any order of events and restarts, compared with a simple model (hypothesis)."""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from support.ledgers import Harness, LocalHarness, RedisHarness
from support.licenses import gpu_names, make_license, signed
from support.redis_server import RedisServer
from taco_license.errors import LeaseRejectedError
from taco_license.ledger.leases import LEASE_SECONDS

pytestmark = pytest.mark.process

GPUS = gpu_names(6)
LICENSED = 5
SOME_GPUS = st.lists(st.sampled_from(GPUS), min_size=1, max_size=3, unique=True)
INSTANCES = st.sampled_from("abc")
STARTED = st.integers(1, 3)


class AnyOrder(RuleBasedStateMachine):
    def __init__(self, harness: Harness, *, restart_renews: bool) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.harness = harness
        self.restart_renews = restart_renews
        self.now = 0.0
        self.limit = 3
        self.serial = 1
        # By GPU with a seat: holder, start of its newest client, and the end of the lease.
        self.model: dict[str, tuple[str, int, float]] = {}
        self.runner.run(self.harness.open())
        self.upload()

    def teardown(self) -> None:
        self.runner.run(self.harness.close())
        self.runner.close()

    @rule(gpus=SOME_GPUS, instance=INSTANCES, started=STARTED)
    def lease(self, gpus: list[str], instance: str, started: int) -> None:
        new = [gpu for gpu in gpus if gpu not in self.model]
        good = (
            all(gpu in GPUS[:LICENSED] for gpu in gpus)
            and all(self.model[gpu][0] == instance for gpu in gpus if gpu in self.model)
            and (not new or not self.limit or len(self.model) + len(new) <= self.limit)
        )
        try:
            self.runner.run(self.harness.service.lease(gpus, instance, started))
        except LeaseRejectedError:
            assert not good
        else:
            assert good
            for gpu in gpus:
                _, newest, _ = self.model.get(gpu, ("", 0, 0.0))
                self.model[gpu] = (instance, max(newest, started), self.now + LEASE_SECONDS)

    @rule(gpus=SOME_GPUS, instance=INSTANCES, started=STARTED)
    def release(self, gpus: list[str], instance: str, started: int) -> None:
        self.runner.run(self.harness.service.release(gpus, instance, started))
        for gpu in gpus:
            holder, newest, _ = self.model.get(gpu, ("", 0, 0.0))
            if holder == instance and newest <= started:
                del self.model[gpu]

    @rule(seconds=st.sampled_from([1.0, 20.0, 59.0]))
    def wait(self, seconds: float) -> None:
        self.runner.run(self.harness.advance(seconds))
        self.runner.run(self.harness.service.tick())
        self.now += seconds
        self.model = {gpu: seat for gpu, seat in self.model.items() if seat[2] > self.now}

    @rule()
    def restart(self) -> None:
        """After a restart holders keep their seats for one lease, so that they can renew."""
        self.runner.run(self.harness.restart())
        if self.restart_renews:
            deadline = self.now + LEASE_SECONDS
            self.model = {gpu: (*seat[:2], deadline) for gpu, seat in self.model.items()}

    @rule(limit=st.integers(0, 4))
    def replace(self, limit: int) -> None:
        self.limit = limit
        self.serial += 1
        self.upload()

    def upload(self) -> None:
        license_ = make_license(LICENSED, access_limit=self.limit, serial=self.serial)
        self.runner.run(self.harness.service.import_license(signed(license_)))

    @invariant()
    def seats_are_those_of_the_model(self) -> None:
        assert self.harness.seats() == {gpu: seat[:2] for gpu, seat in self.model.items()}


def check(make: Callable[[], AnyOrder], examples: int) -> None:
    settings_ = settings(max_examples=examples, stateful_step_count=30)
    run_state_machine_as_test(make, settings=settings_)  # type: ignore[arg-type]


def test_with_one_server(tmp_path: Path) -> None:
    def make() -> AnyOrder:
        harness = LocalHarness(Path(tempfile.mkdtemp(dir=tmp_path)))
        return AnyOrder(harness, restart_renews=True)

    check(make, 20)


def test_with_servers_that_share_redis(redis: RedisServer) -> None:
    check(lambda: AnyOrder(RedisHarness(redis), restart_renews=False), 10)
