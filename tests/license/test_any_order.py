"""Leases in any order of events, restarts included, against a model that counts by hand."""

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from support.licenses import Clock, gpu_names, make_license, make_service, signed
from taco_license.errors import LeaseRefusedError
from taco_license.leases import LEASE_SECONDS
from taco_license.store import Store

GPUS = gpu_names(6)
LICENSED = 5
SOME_GPUS = st.lists(st.sampled_from(GPUS), min_size=1, max_size=3, unique=True)
INSTANCES = st.sampled_from("abc")
STARTED = st.integers(1, 3)


class AnyOrder(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.clock = Clock()
        self.limit = 3
        self.serial = 1
        # Of each GPU that has a seat: the holder, its newest start, and when the seat is free.
        self.model: dict[str, tuple[str, int, float]] = {}
        self.store = Store(Path(self.directory.name))
        self.service = make_service(self.store, self.clock)
        self.upload()

    def teardown(self) -> None:
        self.store.close()
        self.directory.cleanup()

    @rule(gpus=SOME_GPUS, instance=INSTANCES, started=STARTED)
    def lease(self, gpus: list[str], instance: str, started: int) -> None:
        new = [gpu for gpu in gpus if gpu not in self.model]
        good = (
            all(gpu in GPUS[:LICENSED] for gpu in gpus)
            and all(self.model[gpu][0] == instance for gpu in gpus if gpu in self.model)
            and (not new or not self.limit or len(self.model) + len(new) <= self.limit)
        )
        try:
            self.service.lease(gpus, instance, started)
        except LeaseRefusedError:
            assert not good
        else:
            assert good
            for gpu in gpus:
                _, newest, _ = self.model.get(gpu, ("", 0, 0.0))
                deadline = self.clock.monotonic + LEASE_SECONDS
                self.model[gpu] = (instance, max(newest, started), deadline)

    @rule(gpus=SOME_GPUS, instance=INSTANCES, started=STARTED)
    def release(self, gpus: list[str], instance: str, started: int) -> None:
        self.service.release(gpus, instance, started)
        for gpu in gpus:
            holder, newest, _ = self.model.get(gpu, ("", 0, 0.0))
            if holder == instance and newest <= started:
                del self.model[gpu]

    @rule(seconds=st.sampled_from([1.0, 20.0, 59.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.service.tick()
        self.model = {
            gpu: seat for gpu, seat in self.model.items() if seat[2] > self.clock.monotonic
        }

    @rule()
    def restart(self) -> None:
        """Who has a seat has it yet, for a lease's time."""
        self.store.close()
        self.store = Store(Path(self.directory.name))
        self.service = make_service(self.store, self.clock)
        deadline = self.clock.monotonic + LEASE_SECONDS
        self.model = {gpu: (*seat[:2], deadline) for gpu, seat in self.model.items()}

    @rule(limit=st.integers(0, 4))
    def replace(self, limit: int) -> None:
        self.limit = limit
        self.serial += 1
        self.upload()

    def upload(self) -> None:
        license_ = make_license(LICENSED, access_limit=self.limit, serial=self.serial)
        self.service.import_license(signed(license_))

    @invariant()
    def seats_are_those_of_the_model(self) -> None:
        model = {gpu: seat[:2] for gpu, seat in self.model.items()}
        for leases in (self.service.leases, self.store.leases()):
            assert {lease.gpu: (lease.instance, lease.started) for lease in leases} == model


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=20, stateful_step_count=30)
