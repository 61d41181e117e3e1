"""Several license servers that share Redis, and failures of Redis."""

import asyncio
import re
from pathlib import Path

import httpx
import pytest

from support.ledgers import RedisHarness
from support.licenses import DAY, gpu_names, make_license, signed
from support.patience import until
from support.redis_server import RedisServer
from taco_common.redis_link import Command
from taco_license.errors import LeaseRejectedError, LedgerUnavailableError, LicenseError
from taco_license.ledger.leases import LEASE_SECONDS
from taco_license.ledger.redis_ledger import RedisLedger, _call
from taco_license.ledger.redis_scripts import SEATS, STATE
from taco_license.server.app import create_app
from taco_license.server.service import LicenseService

pytestmark = pytest.mark.process

ONE, TWO, THREE, FOUR = gpu_names(4)
NO_LIMIT_BYTES, NO_ROOM_BYTES = 0, 1
DOCUMENTATION = Path(__file__).parents[3] / "docs" / "license.md"


async def ask(service: LicenseService, gpu: str, instance: str = "a") -> str:
    try:
        await service.lease((gpu,), instance, 1)
    except LeaseRejectedError as refusal:
        return refusal.code
    except LedgerUnavailableError:
        return "away"
    return "granted"


async def test_all_servers_follow_a_new_license(shared: RedisHarness) -> None:
    first, second = shared.service, await shared.another()
    await first.import_license(signed(make_license(3)))
    assert second.view() is None
    await second.tick()
    assert second.view() == first.view()
    await second.ledger.close()


async def test_no_server_grants_seats_under_an_old_license(shared: RedisHarness) -> None:
    first, second = shared.service, await shared.another()
    await first.import_license(signed(make_license(3)))
    assert await ask(second, THREE) == "granted"
    await first.import_license(signed(make_license(2, serial=2, access_limit=1)))
    assert await ask(second, THREE) == "not_licensed"
    assert await ask(second, ONE) == "granted"
    assert await ask(first, TWO, "b") == "no_seat"
    await first.import_license(signed(make_license(4, serial=3)))
    assert await ask(second, FOUR) == "granted"  # the second server reads the new license
    await second.ledger.close()


async def test_the_newest_of_concurrent_imports_wins(shared: RedisHarness) -> None:
    services = [shared.service, await shared.another()] * 4
    documents = [signed(make_license(1, serial=serial)) for serial in (5, 3, 8, 1, 2, 7, 4, 6)]
    imports = map(LicenseService.import_license, services, documents)
    outcomes = await asyncio.gather(*imports, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert all(isinstance(error, LicenseError) for error in refused)
    assert shared.events().count(("imported", None, None)) == len(documents) - len(refused)
    for service in services[:2]:
        await service.tick()
        assert service.license is not None
        assert service.license.serial == 8
    await services[1].ledger.close()


async def test_all_servers_share_one_set_of_seats(shared: RedisHarness) -> None:
    first, second = shared.service, await shared.another()
    await first.import_license(signed(make_license(access_limit=1)))
    assert await ask(first, ONE, "a") == "granted"
    assert await ask(second, ONE, "b") == "in_use"
    assert await ask(second, ONE, "a") == "granted"
    await second.release((ONE,), "a", 1)
    assert await ask(first, TWO, "b") == "granted"
    await second.tick()
    assert second.ledger.num_seats == 1
    await second.ledger.close()


@pytest.mark.parametrize("seconds", [300.0, -300.0])
async def test_an_outage_or_a_set_clock_costs_no_seat(shared: RedisHarness, seconds: float) -> None:
    await shared.service.import_license(signed(make_license(access_limit=1)))
    assert await ask(shared.service, ONE, "a") == "granted"
    shared.set_clock(seconds)
    assert await ask(shared.service, TWO, "b") == "no_seat"
    await shared.advance(LEASE_SECONDS)
    assert await ask(shared.service, TWO, "b") == "granted"


async def test_a_license_that_redis_lost_is_restored(shared: RedisHarness) -> None:
    service = shared.service
    await service.import_license(signed(make_license(2, serial=1)))
    old = shared.run("HGETALL", STATE)
    await service.import_license(signed(make_license(3, serial=2)))
    shared.run("HSET", STATE, *(part for pair in old.items() for part in pair))
    assert await ask(service, THREE) == "granted"
    shared.run("DEL", STATE)
    assert await ask(service, THREE) == "granted"
    assert shared.events().count(("restored", None, None)) == 2
    another = await shared.another()
    assert another.view() == service.view()
    with pytest.raises(LicenseError, match="is not above 2"):
        await another.import_license(signed(make_license(2, serial=1)))
    await another.ledger.close()


async def test_an_old_license_under_a_higher_version_is_rejected(shared: RedisHarness) -> None:
    service, old, high = shared.service, signed(make_license(4)), f"{9:019}:{'0' * 64}"
    await service.import_license(old)
    await service.import_license(signed(make_license(2, serial=2)))
    shared.run("HSET", STATE, "version", high, "document", old)
    assert await ask(service, FOUR) == "not_licensed"
    assert await ask(service, ONE) == "granted"
    assert service.license is not None
    assert service.license.serial == 2
    # Nor if no server has another license; the next upload corrects it.
    for document in (old, b""):
        shared.run("HSET", STATE, "version", high, "document", document)
        another = await shared.another()
        assert await ask(another, FOUR) == "no_license"
        await another.import_license(signed(make_license(2, serial=2)))
        assert await ask(another, ONE) == "granted"
        await another.ledger.close()


async def test_a_late_answer_loses_no_license(
    shared: RedisHarness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, ledger = shared.service, shared.service.ledger
    assert isinstance(ledger, RedisLedger)
    await service.import_license(signed(make_license(2)))
    ask_redis, held_up = ledger._ask, [await ledger._ask(_call(ledger._tick))]

    async def answer(command: Command) -> object:
        return held_up.pop() if held_up else await ask_redis(command)

    await service.import_license(signed(make_license(3, serial=2)))
    monkeypatch.setattr(ledger, "_ask", answer)
    await service.tick()
    assert held_up == []
    assert "lost" not in caplog.text
    assert service.license is not None
    assert service.license.serial == 2


async def test_an_unsigned_license_in_redis_is_rejected(shared: RedisHarness) -> None:
    await shared.service.import_license(signed(make_license(2, serial=5)))
    document = signed(make_license(3, serial=6)).replace(ONE.encode(), b"GPU-forged")
    shared.run("HSET", STATE, "version", f"{6:019}:forged", "document", document)
    assert await ask(shared.service, ONE) == "no_license"
    assert await ask(shared.service, "GPU-forged") == "no_license"
    assert shared.service.view() is None


async def test_no_seats_while_redis_is_unavailable(redis_server: RedisServer) -> None:
    harness = RedisHarness(redis_server)
    await harness.open()
    service = harness.service
    await service.import_license(signed(make_license(2)))
    assert isinstance(service.ledger, RedisLedger)
    redis_server.kill()
    lease = {"gpus": [ONE], "instance": "a", "started": 1}
    transport = httpx.ASGITransport(create_app(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://license") as client:
        for path in ("/ls/lease", "/ls/release"):
            answer = await client.post(path, json=lease)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
        answer = await client.post("/ls", files={"file": signed(make_license(3, serial=2))})
        assert answer.status_code == 503
        assert (await client.get("/ls/view")).status_code == 200
        metrics = (await client.get("/metrics")).text
    assert "taco:license_storage_up 0.0" in metrics
    assert 'taco:license_requests_total{outcome="unavailable"} 1.0' in metrics
    assert 'taco:license_imports_total{outcome="failed"} 1.0' in metrics
    assert service.is_valid()
    service.ledger._seen -= 366 * DAY
    assert not service.is_valid(), "licenses expire while Redis is down"

    redis_server.start()  # with an empty database
    harness.set_clock(0)

    async def is_back() -> bool:
        return service.ledger.is_working

    await until(is_back, "a link to Redis")
    assert await ask(service, ONE) == "granted"
    await harness.close()


async def test_a_full_redis_grants_nothing_and_loses_nothing(shared: RedisHarness) -> None:
    service = shared.service
    await service.import_license(signed(make_license(2)))
    shared.run("CONFIG", "SET", "maxmemory", NO_ROOM_BYTES)
    with pytest.raises(LedgerUnavailableError):
        await service.import_license(signed(make_license(3, serial=2)))
    assert await ask(service, ONE) == "away"
    shared.run("CONFIG", "SET", "maxmemory", NO_LIMIT_BYTES)

    async def is_back() -> bool:
        return await ask(service, ONE) == "granted"

    await until(is_back, "a seat")
    assert len(shared.seats()) == 1


async def test_the_documented_redis_acl_is_sufficient(shared: RedisHarness, tmp_path: Path) -> None:
    (line,) = re.findall("^ *ACL SETUSER .*", DOCUMENTATION.read_text(), re.MULTILINE)
    shared.run(*line.replace("PASSWORD", "secret").split(), *shared.CLOCK_RULES)
    (tmp_path / "password").write_text("secret\n")
    url = shared.url.replace("//", "//license@")
    service = await shared.another(url=url, password_file=str(tmp_path / "password"))
    await service.import_license(signed(make_license(2)))
    assert await ask(service, THREE) == "not_licensed"
    assert await ask(service, ONE) == "granted"
    await service.release((ONE,), "a", 1)
    await service.import_license(signed(make_license(1, serial=2)))
    shared.set_clock(300.0)  # an outage
    assert await ask(service, ONE) == "granted"
    await shared.advance(LEASE_SECONDS)
    assert await ask(service, ONE, "b") == "granted"
    assert [event for event, _, _ in shared.events()] == [
        *("imported", "refused", "granted", "released", "imported", "granted", "lapsed", "granted")
    ]
    await service.ledger.close()


async def test_invalid_data_in_redis_grants_nothing(shared: RedisHarness) -> None:
    await shared.service.import_license(signed(make_license(2)))
    shared.run("SET", SEATS, "no hash")
    assert await ask(shared.service, ONE) == "away"
    shared.run("DEL", SEATS)
    assert await ask(shared.service, ONE) == "granted"


async def test_redis_that_dies_in_mid_import_keeps_the_old_license(tmp_path: Path) -> None:
    """Restarts with files cut inside the license and one byte before the end."""
    log = tmp_path / "appendonlydir" / "appendonly.aof.1.incr.aof"
    with RedisServer(tmp_path, keeps_data=True) as server:
        harness = RedisHarness(server)
        await harness.open()
        await harness.service.import_license(signed(make_license(3, serial=1)))
        old = log.stat().st_size
        await harness.service.import_license(signed(make_license(2000, serial=2)))
        await harness.close()
        server.kill()
        data = log.read_bytes()
        for end in ((old + len(data)) // 2, len(data) - 1):
            log.write_bytes(data[:end])
            server.start()
            await harness.open()
            license_ = harness.service.license
            assert license_ is not None
            assert (license_.serial, len(license_.gpus)) == (1, 3)
            await harness.close()
            server.kill()
