"""A job whose ranks may change: lost ones are left out, and hosts that come are taken in.

Each worker process joins rounds, in which it has a rank (elastic_rounds). A round ends when a
worker is lost, as collectives then fail on the others, or at a commit after hosts have changed.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from taco_train.cluster.store import KeyValueStore
from taco_train.collective.store import open_store
from taco_train.lightcc import elastic_rounds
from taco_train.lightcc.elastic_rounds import Answer
from taco_train.lightcc.launcher.discovery import DiscoveryScript, FixedHosts
from taco_train.lightcc.launcher.host_slots import (
    HostSlots,
    rank_variables,
    store_address,
    store_variables,
)
from taco_train.lightcc.launcher.options import Options
from taco_train.lightcc.launcher.rank_group import (
    Ended,
    Event,
    Interrupted,
    JobError,
    RankGroup,
    describe_code,
)
from taco_train.lightcc.settings import settings_from

_TICK_SECONDS = 0.1


@dataclass(slots=True)
class _Worker:
    """A process of the job.

    Attributes:
        number: in the order of their starts.
        host: where it runs.
        started_at: by time.monotonic.
        first_round: in which it took part; None: in none yet.
        num_ready: how often it has become ready.
        num_answered: how often it was answered.
        leaves: its host is gone from the list, or has fewer slots.
        is_silent: others wait for a round, and it was ended since it does not come.
    """

    number: int
    host: str
    started_at: float
    first_round: int | None = None
    num_ready: int = 0
    num_answered: int = 0
    leaves: bool = False
    is_silent: bool = False

    @property
    def name(self) -> str:
        return str(self.number)

    @property
    def waits(self) -> bool:
        return self.num_ready > self.num_answered


def run_elastic(options: Options) -> None:
    """Runs the command until the workers of a round have ended with exit code 0.

    Raises:
        JobError: too few ranks are left, or the launcher was interrupted.
    """
    if options.discovery_script is not None:
        source: DiscoveryScript | FixedHosts = DiscoveryScript(
            options.discovery_script, options.slots_per_host
        )
    else:
        source = FixedHosts(options.hosts)
    environment = {**os.environ, **options.variables}
    address = store_address([host.name for host in source.hosts()], environment)
    listens = "0.0.0.0" if source.can_change or address != "127.0.0.1" else address
    store, port = open_store(listens, 0, serves=True, timeout=options.start_timeout)
    group = RankGroup(options.command, options.connection, options.output_folder)

    def store_at(host: str) -> dict[str, str]:
        # Hosts that come later may reach this one at another address than the first ones.
        return store_variables(store_address([host], environment), port)

    try:
        with group.until_interrupted():
            ElasticJob(options, source, store, group, store_at, report=_print).run()
    finally:
        source.close()


def _print(line: str) -> None:
    print(f"horovodrun: {line}", file=sys.stderr, flush=True)


class Hosts(Protocol):
    """Where an elastic job gets its hosts from."""

    @property
    def can_change(self) -> bool:
        """Whether it is worth waiting for another host."""

    def hosts(self) -> list[HostSlots]:
        """The hosts now."""


class Workers(Protocol):
    """The processes of an elastic job (RankGroup)."""

    @property
    def num_started(self) -> int: ...

    def start(self, host: str, variables: Mapping[str, str]) -> int: ...

    def next_event(self, seconds: float) -> Event | None: ...

    def stop(self, number: int) -> None: ...


class ElasticJob:
    """The rounds of a job.

    Args:
        options: limits of ranks, rounds and times; variables of all workers.
        store: served by this process.
        store_at: variables that say to workers of a host where the store is.
        report: called with each line of text for the user.

    Attributes:
        members: numbers of the last round's workers, by rank.
    """

    def __init__(
        self,
        options: Options,
        source: Hosts,
        store: KeyValueStore,
        group: Workers,
        store_at: Callable[[str], Mapping[str, str]],
        *,
        report: Callable[[str], None],
    ) -> None:
        self._options, self._source, self._store, self._group = options, source, store, group
        self._store_at, self._report = store_at, report
        self._common = {
            **options.variables,
            elastic_rounds.ELASTIC_VARIABLE: "1",
            elastic_rounds.TIMEOUT_VARIABLE: f"{options.elastic_timeout:g}",
        }
        self._min_ranks = options.min_ranks or 1
        self.members: list[int] = []
        self._workers: dict[int, _Worker] = {}
        self._lost: Counter[str] = Counter()
        self._num_rounds = 0
        self._num_updates = 0
        self._round_updates = 0  # when the round began
        self._has_finished = False
        self._last_failure = ""
        self._short_since: float | None = None
        self._waiting_since: float | None = None
        environment = {**os.environ, **options.variables}
        self._silent_seconds = settings_from(environment).stall_fail_seconds or (
            options.elastic_timeout
        )

    def run(self) -> None:
        """Returns when the workers of a round have ended well.

        Raises:
            JobError: too few ranks are left, or the launcher was interrupted.
        """
        while True:
            if not self._has_finished:
                self._follow_hosts()
                self._start_missing()
                self._check_enough()
            elif not self._workers:
                return
            event = self._group.next_event(_TICK_SECONDS)
            if event is not None:
                self._on_event(event)
            for worker in self._workers.values():
                worker.num_ready = elastic_rounds.ready_count(self._store, worker.name)
            self._answer_leaving()
            if self._has_finished:
                self._refuse_rounds()
            elif self._is_round_complete():
                self._begin_round()
            else:
                self._announce()
                self._end_silent()

    def _slots(self) -> dict[str, int]:
        """Usable slots by host: each failure of a worker takes one from its host."""
        return {
            host.name: max(0, host.slots - self._lost[host.name]) for host in self._source.hosts()
        }

    def _follow_hosts(self) -> None:
        slots = self._slots()
        for host in list(self._lost):
            if host not in slots:
                del self._lost[host]  # it may come back repaired
        for worker in reversed(self._workers.values()):
            here = [one for one in self._workers.values() if one.host == worker.host]
            staying = sum(not one.leaves for one in here)
            if not worker.leaves and staying > slots.get(worker.host, 0):
                worker.leaves = True
                self._note_update()

    def _start_missing(self) -> None:
        most = self._options.max_ranks or self._options.num_ranks
        for host, slots in self._slots().items():
            staying = [one for one in self._workers.values() if not one.leaves]
            here = sum(one.host == host for one in staying)
            limit = slots - here if most is None else min(slots - here, most - len(staying))
            for _ in range(limit):
                self._start(host)

    def _start(self, host: str) -> None:
        number = self._group.num_started
        variables = {
            **self._common,
            **self._store_at(host),
            elastic_rounds.WORKER_VARIABLE: str(number),
            "HOROVOD_HOSTNAME": host,
        }
        self._group.start(host, variables)
        self._workers[number] = _Worker(number, host, time.monotonic())

    def _check_enough(self) -> None:
        staying = [one for one in self._workers.values() if not one.leaves]
        if len(staying) >= self._min_ranks:
            self._short_since = None
            return
        now = time.monotonic()
        self._short_since = self._short_since or now
        waits = self._source.can_change and (staying or not self._last_failure)
        if waits and now - self._short_since < self._options.elastic_timeout:
            return
        reason = f"; {self._last_failure}" if self._last_failure else ""
        raise JobError(
            f"{len(staying)} ranks are left; {self._min_ranks} are needed (--min-np, "
            f"min_num_proc){reason}"
        )

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Interrupted):
            raise JobError(f"ended by {event.number.name}", 128 + event.number)
        if not isinstance(event, Ended):
            return
        worker = self._workers.pop(event.number)
        if worker.leaves:
            return
        if event.code == 0:
            self._has_finished = True
            for other in self._workers.values():
                if other.first_round is None:
                    other.leaves = True
                    self._group.stop(other.number)
            return
        line = f"worker {worker.number} on host {worker.host} failed"
        self._last_failure = f"{line} with {describe_code(event.code)}"
        if self._has_finished:
            raise JobError(f"{self._last_failure} after another had ended", event.code)
        self._report(self._last_failure)
        self._lost[worker.host] += 1

    def _answer_leaving(self) -> None:
        for worker in self._workers.values():
            if worker.leaves and worker.waits:
                self._answer(worker, Answer({}, leaves=True))

    def _refuse_rounds(self) -> None:
        for worker in self._workers.values():
            if worker.waits:
                self._answer(worker, Answer({}, error="another worker has ended the training"))

    def _is_round_complete(self) -> bool:
        staying = [one for one in self._workers.values() if not one.leaves]
        waiting = [one for one in staying if one.waits]
        if len(waiting) < self._min_ranks:
            return False
        if any(one.first_round is not None and not one.waits for one in staying):
            return False  # it is still in the last round
        if self._num_rounds:
            return True  # those that are starting come in at a later commit
        return not self._starting(staying)

    def _end_silent(self) -> None:
        """Ends the members of the last round for which the others have waited too long.

        A process that is stopped, or hangs outside of collectives, fails no connection.
        """
        members = [one for one in self._workers.values() if one.first_round is not None]
        now = time.monotonic()
        if not any(one.waits for one in members):
            self._waiting_since = None
            return
        self._waiting_since = self._waiting_since or now
        if now - self._waiting_since < self._silent_seconds:
            return
        for worker in members:
            if not (worker.waits or worker.is_silent):
                worker.is_silent = True
                self._report(f"worker {worker.number} on host {worker.host} is silent: it is ended")
                self._group.stop(worker.number)

    def _starting(self, workers: list[_Worker]) -> list[_Worker]:
        """Those that are not ready yet, but may be in time."""
        oldest = time.monotonic() - self._options.start_timeout
        return [one for one in workers if not one.num_ready and one.started_at > oldest]

    def _announce(self) -> None:
        """Once all new workers are ready, asks the round to end for them."""
        staying = [one for one in self._workers.values() if not one.leaves]
        new = [one for one in staying if one.first_round is None and one.waits]
        members = [one for one in staying if one.first_round is not None]
        is_asked = self._num_updates > self._round_updates
        if new and members and not is_asked and not self._starting(staying):
            self._note_update()

    def _note_update(self) -> None:
        self._num_updates += 1
        elastic_rounds.note_update(self._store)

    def _begin_round(self) -> None:
        limit = self._options.reset_limit
        if limit is not None and self._num_rounds > limit:
            raise JobError(
                f"ranks have connected anew {limit} times, the limit (--reset-limit, reset_limit)"
            )
        chosen = [one for one in self._workers.values() if one.waits and not one.leaves]
        ordered = _ranked(chosen)
        self.members = [one.number for one in ordered]
        self._round_updates = self._num_updates
        self._waiting_since = None
        variables = rank_variables([one.host for one in ordered])
        for worker, own in zip(ordered, variables, strict=True):
            said = Answer(own, f"elastic {self._num_rounds}", self._num_updates)
            self._answer(worker, said)
            if worker.first_round is None:
                worker.first_round = self._num_rounds
        for worker in self._workers.values():
            if worker.leaves:
                self._group.stop(worker.number)
        self._num_rounds += 1
        if self._options.is_verbose:
            hosts = ", ".join(f"{rank}: {one.host}" for rank, one in enumerate(ordered))
            self._report(f"round {self._num_rounds}: {hosts}")

    def _answer(self, worker: _Worker, said: Answer) -> None:
        elastic_rounds.answer(self._store, worker.name, worker.num_ready, said)
        worker.num_answered = worker.num_ready


def _ranked(workers: list[_Worker]) -> list[_Worker]:
    """By rank: rank 0 has been there longest, so it has the state; hosts' ranks are consecutive."""
    new = 1 << 62

    def age(worker: _Worker) -> tuple[int, int]:
        return (new if worker.first_round is None else worker.first_round, worker.number)

    oldest: dict[str, tuple[int, int]] = {}
    for worker in sorted(workers, key=age):
        oldest.setdefault(worker.host, age(worker))
    return sorted(workers, key=lambda worker: (oldest[worker.host], age(worker)))
