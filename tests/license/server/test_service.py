"""Licenses and seats, with a single server and with servers that share Redis."""

import asyncio
from collections import Counter

import pytest

from support.ledgers import Harness
from support.licenses import DAY, gpu_names, make_license, signed
from taco_license.errors import LeaseRejectedError, LicenseError
from taco_license.ledger.leases import HEARTBEAT_SECONDS, LEASE_SECONDS
from taco_license.ledger.ledger import MAX_AUDITED_CHANGES
from taco_license.server.service import MAX_AUDITED_REJECTIONS

ONE, TWO, THREE, FOUR = gpu_names(4)


async def ask(harness: Harness, *gpus: str, instance: str = "a", started: int = 1) -> str:
    """The outcome of a lease request."""
    try:
        assert await harness.service.lease(gpus, instance, started) > 0
    except LeaseRejectedError as refusal:
        return refusal.code
    return "granted"


async def test_a_thousand_clients_compete_for_ten_seats(harness: Harness) -> None:
    await harness.service.import_license(signed(make_license(1000, access_limit=10)))
    asks = (ask(harness, gpu, instance=gpu) for gpu in gpu_names(1000))
    outcomes = Counter(await asyncio.gather(*asks))
    assert outcomes == {"granted": 10, "no_seat": 990}


async def test_access_limit_0_allows_every_gpu(harness: Harness) -> None:
    await harness.service.import_license(signed(make_license(1000, access_limit=0)))
    asks = (ask(harness, gpu, instance=gpu) for gpu in gpu_names(1000))
    assert set(await asyncio.gather(*asks)) == {"granted"}


async def test_a_second_instance_cannot_take_a_gpus_seat(harness: Harness) -> None:
    await harness.service.import_license(signed(make_license(access_limit=1)))
    assert await ask(harness, ONE, instance="a") == "granted"
    assert await ask(harness, ONE, instance="a") == "granted"
    assert await ask(harness, ONE, instance="b") == "in_use"
    assert harness.events()[1:] == [("granted", ONE, "a"), ("refused", ONE, "b")]


async def test_a_worker_gets_seats_for_all_its_gpus_or_none(harness: Harness) -> None:
    await harness.service.import_license(signed(make_license(4, access_limit=3)))
    assert await ask(harness, ONE, TWO, instance="a") == "granted"
    assert await ask(harness, THREE, FOUR, instance="b") == "no_seat"
    assert await ask(harness, THREE, "another", instance="b") == "not_licensed"
    assert await ask(harness, THREE, instance="b") == "granted"
    assert await ask(harness, TWO, THREE, instance="a") == "in_use"


async def test_no_seats_without_a_license(harness: Harness) -> None:
    assert harness.service.view() is None
    assert await ask(harness, ONE) == "no_license"


async def test_no_seats_under_an_expired_license(harness: Harness) -> None:
    await harness.service.import_license(signed(make_license(days=2)))
    assert await harness.service.lease((ONE,), "a", 1) == pytest.approx(DAY)
    await harness.advance(DAY)
    assert await ask(harness, ONE) == "expired"
    assert not harness.service.is_valid()


async def test_the_seat_of_a_killed_holder_is_free_after_the_lease(harness: Harness) -> None:
    await harness.service.import_license(signed(make_license(access_limit=1)))
    assert await ask(harness, ONE, instance="a") == "granted"
    await harness.advance(LEASE_SECONDS - 1)
    assert await ask(harness, TWO, instance="b") == "no_seat"
    await harness.advance(1)
    assert await ask(harness, TWO, instance="b") == "granted"
    assert ("lapsed", ONE, "a") in harness.events()


async def test_an_outage_costs_no_seat(harness: Harness) -> None:
    await harness.service.import_license(signed(make_license(access_limit=1)))
    assert await ask(harness, ONE, instance="a") == "granted"
    await harness.pass_time(2 * LEASE_SECONDS)  # holders could not renew
    assert await ask(harness, TWO, instance="b") == "no_seat"
    await harness.advance(LEASE_SECONDS)
    assert await ask(harness, TWO, instance="b") == "granted"


async def test_heartbeats_keep_a_seat(harness: Harness) -> None:
    await harness.service.import_license(signed(make_license(access_limit=1)))
    for _ in range(10):
        assert await ask(harness, ONE, instance="a") == "granted"
        await harness.advance(HEARTBEAT_SECONDS)
        assert await ask(harness, TWO, instance="b") == "no_seat"


async def test_a_released_seat_is_free_at_once(harness: Harness) -> None:
    await harness.service.import_license(signed(make_license(access_limit=1)))
    await ask(harness, ONE, instance="a")
    await harness.service.release([ONE, TWO], "b", 1)
    assert await ask(harness, TWO, instance="b") == "no_seat"
    await harness.service.release([ONE], "a", 1)
    assert await ask(harness, TWO, instance="b") == "granted"


async def test_an_older_client_does_not_free_its_successors_seat(harness: Harness) -> None:
    await harness.service.import_license(signed(make_license(access_limit=1)))
    for started in (1, 2, 1):
        assert await ask(harness, ONE, instance="a", started=started) == "granted"
    await harness.service.release([ONE], "a", 1)
    assert await ask(harness, TWO, instance="b") == "no_seat"
    await harness.service.release([ONE], "a", 2)
    assert await ask(harness, TWO, instance="b") == "granted"


async def test_seats_outlive_a_restart_of_the_server(harness: Harness) -> None:
    await harness.service.import_license(signed(make_license(access_limit=2)))
    await ask(harness, ONE, instance="a")
    await ask(harness, TWO, instance="b")
    await harness.service.release([TWO], "b", 1)
    await harness.restart()
    assert await ask(harness, ONE, instance="c") == "in_use"
    assert await ask(harness, TWO, instance="c") == "granted"
    assert await ask(harness, THREE, instance="c") == "no_seat"
    await harness.advance(LEASE_SECONDS)
    assert await ask(harness, ONE, instance="c") == "granted"


async def test_an_older_license_is_rejected(harness: Harness) -> None:
    await harness.service.import_license(signed(make_license(1, serial=5)))
    for serial in (4, 5):
        with pytest.raises(LicenseError, match="is not above 5"):
            await harness.service.import_license(signed(make_license(2, serial=serial)))
    same = signed(make_license(1, serial=5))
    await harness.service.import_license(same)  # the same file again changes nothing
    await harness.service.import_license(signed(make_license(3, serial=6)))
    assert harness.service.license is not None
    assert len(harness.service.license.gpus) == 3
    assert harness.service.imports == {"accepted": 3, "refused": 2}


async def test_an_expired_license_is_rejected_at_import(harness: Harness) -> None:
    await harness.service.import_license(signed(make_license(serial=1)))
    await harness.advance(10 * DAY)
    with pytest.raises(LicenseError, match="expired at"):
        await harness.service.import_license(signed(make_license(serial=2, days=10)))
    assert await ask(harness, ONE) == "granted"


async def test_a_new_license_replaces_the_current_one(harness: Harness) -> None:
    await harness.service.import_license(signed(make_license(4)))
    await ask(harness, ONE, instance="a")
    await ask(harness, FOUR, instance="a")
    await harness.service.import_license(signed(make_license(2, serial=2)))
    assert await ask(harness, FOUR, instance="a") == "not_licensed"
    assert await ask(harness, ONE, instance="a") == "granted"
    assert len(harness.seats()) == 1
    assert ("dropped", FOUR, "a") in harness.events()


async def test_a_lower_limit_keeps_existing_seats(harness: Harness) -> None:
    await harness.service.import_license(signed(make_license(4, access_limit=3)))
    for gpu in (ONE, TWO, THREE):
        await ask(harness, gpu)
    await harness.service.import_license(signed(make_license(4, access_limit=2, serial=2)))
    outcomes = [await ask(harness, gpu) for gpu in (ONE, TWO, THREE, FOUR)]
    assert outcomes == ["granted", "granted", "granted", "no_seat"]


async def test_setting_the_clock_back_does_not_extend_the_license(harness: Harness) -> None:
    await harness.service.import_license(signed(make_license(days=2)))
    await harness.advance(2 * DAY)
    assert await ask(harness, ONE) == "expired"
    harness.set_clock(-2 * DAY)
    assert await ask(harness, ONE) == "expired"
    await harness.service.tick()
    assert harness.service.ledger.clock_lag_seconds() == 2 * DAY
    await harness.restart()
    assert await ask(harness, ONE) == "expired"


async def test_a_newer_license_corrects_a_clock_from_the_future(
    harness: Harness,
) -> None:
    old = signed(make_license(serial=1))
    await harness.service.import_license(old)
    harness.set_clock(3650 * DAY)
    assert await ask(harness, ONE) == "expired"
    harness.set_clock(-3650 * DAY)
    await harness.service.import_license(old)
    assert await ask(harness, ONE) == "expired"
    await harness.service.import_license(signed(make_license(serial=2)))
    assert await ask(harness, ONE) == "granted"


async def test_time_is_never_before_the_issue_of_the_license(harness: Harness) -> None:
    harness.set_clock(-30 * DAY)
    await harness.service.import_license(signed(make_license(days=1)))
    assert await harness.service.lease((ONE,), "a", 1) == pytest.approx(DAY)


async def test_a_stored_license_of_an_untrusted_issuer_is_not_used(harness: Harness) -> None:
    await harness.service.import_license(signed(make_license(serial=5)))
    await harness.restart(keys={})
    assert await ask(harness, ONE) == "no_license"
    await harness.restart()
    assert await ask(harness, ONE) == "granted"
    with pytest.raises(LicenseError, match="is not above 5"):
        await harness.service.import_license(signed(make_license(2, serial=4)))


async def test_logged_rejections_are_rate_limited(harness: Harness) -> None:
    await asyncio.gather(*(ask(harness, ONE, instance=str(index)) for index in range(500)))
    assert len(harness.events()) == MAX_AUDITED_REJECTIONS
    assert harness.service.outcomes["no_license"] == 500
    await harness.advance(60)
    await ask(harness, ONE)
    assert len(harness.events()) == MAX_AUDITED_REJECTIONS + 1


async def test_logged_grants_and_releases_are_rate_limited(harness: Harness) -> None:
    await harness.service.import_license(signed(make_license()))
    for _ in range(MAX_AUDITED_CHANGES):
        assert await ask(harness, ONE) == "granted"
        await harness.service.release([ONE], "a", 1)
    await harness.service.tick()
    assert Counter(event for event, _, _ in harness.events()) == {
        "imported": 1,
        "granted": MAX_AUDITED_CHANGES // 2,
        "released": MAX_AUDITED_CHANGES // 2,
    }
    await harness.advance(60)
    await harness.service.tick()
    await harness.service.tick()
    assert await ask(harness, ONE) == "granted"
    assert [event for event, _, _ in harness.events()[-2:]] == ["more", "granted"]
    assert len(harness.events()) == 1 + MAX_AUDITED_CHANGES + 2
