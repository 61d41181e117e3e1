"""Which license holds, who has a seat under it, and what a server knows after a restart."""

import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from support.licenses import (
    DAY,
    KEYS,
    Clock,
    gpu_names,
    make_license,
    make_service,
    signed,
)
from support.patience import PATIENCE_SECONDS
from taco_license.document import verify
from taco_license.errors import LeaseRefusedError, LicenseError, SettingError
from taco_license.leases import HEARTBEAT_SECONDS, LEASE_SECONDS
from taco_license.service import MAX_AUDITED_REFUSALS, LicenseService
from taco_license.store import DATABASE, Store

ONE, TWO, THREE, FOUR = gpu_names(4)


def ask(service: LicenseService, *gpus: str, instance: str = "a", started: int = 1) -> str:
    """What became of a request for leases."""
    try:
        assert service.lease(gpus, instance, started) > 0
    except LeaseRefusedError as refusal:
        return refusal.code
    return "granted"


def events(store: Store) -> list[tuple[str, str | None, str | None]]:
    return [(entry.event, entry.gpu, entry.instance) for entry in store.audit()]


def test_of_a_thousand_clients_ten_get_the_ten_seats(service: LicenseService) -> None:
    service.import_license(signed(make_license(1000, access_limit=10)))
    outcomes = Counter(ask(service, gpu, instance=gpu) for gpu in gpu_names(1000))
    assert outcomes == {"granted": 10, "no_seat": 990}


def test_no_limit_is_every_gpu_at_once(service: LicenseService) -> None:
    service.import_license(signed(make_license(1000, access_limit=0)))
    assert {ask(service, gpu, instance=gpu) for gpu in gpu_names(1000)} == {"granted"}


def test_a_gpu_serves_in_one_place(service: LicenseService, store: Store) -> None:
    service.import_license(signed(make_license(access_limit=1)))
    assert ask(service, ONE, instance="a") == "granted"
    assert ask(service, ONE, instance="a") == "granted"
    assert ask(service, ONE, instance="b") == "in_use"
    assert events(store)[1:] == [("granted", ONE, "a"), ("refused", ONE, "b")]


def test_gpus_of_one_worker_come_together_or_not_at_all(service: LicenseService) -> None:
    service.import_license(signed(make_license(4, access_limit=3)))
    assert ask(service, ONE, TWO, instance="a") == "granted"
    assert ask(service, THREE, FOUR, instance="b") == "no_seat"
    assert ask(service, THREE, "another", instance="b") == "not_licensed"
    assert ask(service, THREE, instance="b") == "granted"
    assert ask(service, TWO, THREE, instance="a") == "in_use"


def test_nothing_serves_without_a_license(service: LicenseService) -> None:
    assert service.view() is None
    assert ask(service, ONE) == "no_license"


def test_an_expired_license_serves_nobody(service: LicenseService, clock: Clock) -> None:
    service.import_license(signed(make_license(days=2)))
    assert service.lease((ONE,), "a", 1) == pytest.approx(DAY)
    clock.advance(DAY)
    assert ask(service, ONE) == "expired"
    assert not service.is_valid()


def test_the_seat_of_a_killed_holder_is_free_after_the_lease(
    service: LicenseService, clock: Clock, store: Store
) -> None:
    service.import_license(signed(make_license(access_limit=1)))
    assert ask(service, ONE, instance="a") == "granted"
    clock.advance(LEASE_SECONDS - 1)
    assert ask(service, TWO, instance="b") == "no_seat"
    clock.advance(1)
    assert ask(service, TWO, instance="b") == "granted"
    assert ("lapsed", ONE, "a") in events(store)


def test_heartbeats_keep_a_seat(service: LicenseService, clock: Clock) -> None:
    service.import_license(signed(make_license(access_limit=1)))
    for _ in range(10):
        assert ask(service, ONE, instance="a") == "granted"
        clock.advance(HEARTBEAT_SECONDS)
        assert ask(service, TWO, instance="b") == "no_seat"


def test_a_seat_that_is_given_back_is_free_at_once(service: LicenseService) -> None:
    service.import_license(signed(make_license(access_limit=1)))
    ask(service, ONE, instance="a")
    service.release([ONE, TWO], "b", 1)
    assert ask(service, TWO, instance="b") == "no_seat"
    service.release([ONE], "a", 1)
    assert ask(service, TWO, instance="b") == "granted"


def test_a_client_frees_no_seat_of_its_successor(service: LicenseService) -> None:
    service.import_license(signed(make_license(access_limit=1)))
    for started in (1, 2, 1):
        assert ask(service, ONE, instance="a", started=started) == "granted"
    service.release([ONE], "a", 1)
    assert ask(service, TWO, instance="b") == "no_seat"
    service.release([ONE], "a", 2)
    assert ask(service, TWO, instance="b") == "granted"


def test_seats_outlive_a_restart_of_the_server(tmp_path: Path, clock: Clock) -> None:
    with Store(tmp_path / "data") as store:
        service = make_service(store, clock)
        service.import_license(signed(make_license(access_limit=2)))
        ask(service, ONE, instance="a")
        ask(service, TWO, instance="b")
        service.release([TWO], "b", 1)
    clock.monotonic = 5.0  # the machine was restarted, too
    with Store(tmp_path / "data") as store:
        service = make_service(store, clock)
        assert ask(service, ONE, instance="c") == "in_use"
        assert ask(service, TWO, instance="c") == "granted"
        assert ask(service, THREE, instance="c") == "no_seat"
        clock.advance(LEASE_SECONDS)
        assert ask(service, ONE, instance="c") == "granted"


def test_an_older_license_is_refused(service: LicenseService) -> None:
    service.import_license(signed(make_license(1, serial=5)))
    for serial in (4, 5):
        with pytest.raises(LicenseError, match="is not above 5"):
            service.import_license(signed(make_license(2, serial=serial)))
    service.import_license(signed(make_license(1, serial=5)))  # the same file again is no harm
    service.import_license(signed(make_license(3, serial=6)))
    assert service.license is not None
    assert len(service.license.gpus) == 3
    assert service.imports == {"accepted": 3, "refused": 2}


def test_a_license_that_has_expired_is_refused(service: LicenseService, clock: Clock) -> None:
    service.import_license(signed(make_license(serial=1)))
    clock.advance(10 * DAY)
    with pytest.raises(LicenseError, match="expired at"):
        service.import_license(signed(make_license(serial=2, days=10)))
    assert ask(service, ONE) == "granted"


def test_a_new_license_takes_the_place_of_all_before(service: LicenseService, store: Store) -> None:
    service.import_license(signed(make_license(4)))
    ask(service, ONE, instance="a")
    ask(service, FOUR, instance="a")
    service.import_license(signed(make_license(2, serial=2)))
    assert ask(service, FOUR, instance="a") == "not_licensed"
    assert ask(service, ONE, instance="a") == "granted"
    assert len(service.leases) == 1
    assert ("dropped", FOUR, "a") in events(store)


def test_a_lower_limit_takes_no_seat_away(service: LicenseService) -> None:
    service.import_license(signed(make_license(4, access_limit=3)))
    for gpu in (ONE, TWO, THREE):
        ask(service, gpu)
    service.import_license(signed(make_license(4, access_limit=2, serial=2)))
    assert [ask(service, gpu) for gpu in (ONE, TWO, THREE, FOUR)] == [*["granted"] * 3, "no_seat"]


def test_a_clock_turned_back_wins_no_time(tmp_path: Path, clock: Clock) -> None:
    with Store(tmp_path / "data") as store:
        service = make_service(store, clock)
        service.import_license(signed(make_license(days=2)))
        clock.advance(2 * DAY)
        assert ask(service, ONE) == "expired"
        clock.wall -= 2 * DAY
        assert ask(service, ONE) == "expired"
        assert service.seconds_behind() == 2 * DAY
        service.tick()
    with Store(tmp_path / "data") as store:
        assert ask(make_service(store, clock), ONE) == "expired"


def test_a_clock_that_stood_in_the_future_is_mended_by_a_newer_license(
    service: LicenseService, clock: Clock
) -> None:
    old = signed(make_license(serial=1))
    service.import_license(old)
    clock.wall += 3650 * DAY
    assert ask(service, ONE) == "expired"
    clock.wall -= 3650 * DAY
    service.import_license(old)
    assert ask(service, ONE) == "expired"
    service.import_license(signed(make_license(serial=2)))
    assert ask(service, ONE) == "granted"


def test_time_is_never_before_the_issue_of_the_license(
    service: LicenseService, clock: Clock
) -> None:
    clock.wall = 0.0
    service.import_license(signed(make_license(days=1)))
    assert service.lease((ONE,), "a", 1) == pytest.approx(DAY)


def test_a_full_disk_stops_no_worker_and_keeps_the_license(
    service: LicenseService, store: Store
) -> None:
    service.import_license(signed(make_license(2)))
    before = service.view()
    store._connection.execute("PRAGMA max_page_count = 1")  # no page more than there are
    with pytest.raises(sqlite3.OperationalError, match="full"):
        service.import_license(signed(make_license(2000, serial=2)))
    assert service.view() == before
    stored = store.document()
    assert stored is not None
    assert verify(stored[0], KEYS) == service.license
    assert {ask(service, gpu) for gpu in (ONE, TWO) for _ in range(200)} == {"granted"}
    store._connection.execute("PRAGMA max_page_count = 1000000")
    service.import_license(signed(make_license(2000, serial=2)))


KILLED_IMPORT = """
import os, signal, sys
from support.licenses import Clock, make_license, make_service, signed
from taco_license.store import Store

directory, last_words = sys.argv[1:]
store = Store(directory)
service = make_service(store, Clock())
service.import_license(signed(make_license(3, serial=1)))

def die(statement):
    if statement.startswith(last_words):
        os.kill(os.getpid(), signal.SIGKILL)

store._connection.set_trace_callback(die)
service.import_license(signed(make_license(2000, serial=2)))
"""


@pytest.mark.parametrize("last_words", ["INSERT OR REPLACE INTO clock", "COMMIT"])
def test_a_server_killed_in_mid_import_keeps_the_old_license(
    tmp_path: Path, clock: Clock, last_words: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED_IMPORT, str(tmp_path), last_words],
        env={"PYTHONPATH": str(Path(__file__).parents[1])},
        timeout=PATIENCE_SECONDS,
        capture_output=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    with Store(tmp_path) as store:
        service = make_service(store, clock)
        assert service.license is not None
        assert (service.license.serial, len(service.license.gpus)) == (1, 3)
        service.import_license(signed(make_license(2000, serial=2)))


def test_a_license_of_an_issuer_who_is_not_trusted_any_more(tmp_path: Path, clock: Clock) -> None:
    with Store(tmp_path) as store:
        make_service(store, clock).import_license(signed(make_license(serial=5)))
    with Store(tmp_path) as store:
        assert ask(make_service(store, clock, {}), ONE) == "no_license"
        service = make_service(store, clock)
        assert ask(service, ONE) == "granted"
        with pytest.raises(LicenseError, match="is not above 5"):
            service.import_license(signed(make_license(2, serial=4)))


def test_the_audit_log_can_only_grow(service: LicenseService, tmp_path: Path) -> None:
    service.import_license(signed(make_license()))
    with sqlite3.connect(tmp_path / "data" / DATABASE) as connection:
        for change in ("DELETE FROM audit", "UPDATE audit SET event = 'nothing'"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                connection.execute(change)
    connection.close()


def test_refusals_cannot_fill_the_disk(service: LicenseService, store: Store, clock: Clock) -> None:
    for index in range(500):
        ask(service, ONE, instance=str(index))
    assert len(store.audit()) == MAX_AUDITED_REFUSALS
    assert service.outcomes["no_license"] == 500
    clock.advance(60)
    ask(service, ONE)
    assert len(store.audit()) == MAX_AUDITED_REFUSALS + 1


def test_two_servers_cannot_share_a_store(store: Store, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="another license server"):
        Store(tmp_path / "data")


def test_a_store_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match="cannot write in"):
        Store(tmp_path / "file" / "data")
    (tmp_path / DATABASE).write_bytes(b"no database" * 100)
    with pytest.raises(SettingError, match="not a database"):
        Store(tmp_path)
    (tmp_path / DATABASE).unlink()
    with sqlite3.connect(tmp_path / DATABASE) as connection:
        connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(SettingError, match="another version"):
        Store(tmp_path)
