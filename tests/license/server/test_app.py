"""The HTTP routes of the license server, including rejected requests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from support.licenses import Clock, gpu_names, make_license, signed
from taco_license.ledger.leases import HEARTBEAT_SECONDS, LEASE_SECONDS
from taco_license.ledger.sqlite_store import Store
from taco_license.server.app import MAX_LEASE_BYTES, MAX_UPLOAD_BYTES, create_app
from taco_license.server.server import token_reader
from taco_license.server.service import LicenseService

TOKEN = "a-token"
ONE, TWO = gpu_names(2)


@asynccontextmanager
async def connected(service: LicenseService, token: Path | None = None) -> AsyncIterator[Any]:
    reader = None if token is None else token_reader(str(token))
    transport = httpx.ASGITransport(create_app(service, reader))
    async with httpx.AsyncClient(transport=transport, base_url="http://license") as client:
        yield client


async def upload(client: httpx.AsyncClient, data: bytes, **headers: str) -> httpx.Response:
    return await client.post("/ls", files={"file": ("license.dat", data)}, headers=headers)


async def test_the_commands_of_the_documents(service: LicenseService) -> None:
    license_ = make_license(3, access_limit=10)
    async with connected(service) as client:
        assert (await client.get("/")).text == "taco license server\n"
        assert (await client.get("/ls/view")).status_code == 404
        answer = await upload(client, signed(license_))
        assert (answer.status_code, answer.text) == (200, "license file sucessfully uploaded\n")
        view = yaml.safe_load((await client.get("/ls/view")).text)
    assert (view["appid"], view["customer"], view["accesslimit"]) == ("1234", "leolingli", 10)
    assert [gpu["uuid"] for gpu in view["gpuinfos"]] == gpu_names(3)
    assert view["gpuinfos"][0]["expiredtime"].timestamp() == license_.expires


async def test_an_invalid_license_changes_nothing(service: LicenseService) -> None:
    good = signed(make_license(3))
    async with connected(service) as client:
        await upload(client, good)
        before = (await client.get("/ls/view")).text
        for bad in (b"", good[:-1], good + b"\n", bytes(5 << 20), signed(make_license(2))):
            answer = await upload(client, bad)
            assert answer.status_code in (400, 413)
            assert answer.text.count("\n") == 1
        assert (await client.get("/ls/view")).text == before


async def test_replacing_the_license_needs_the_admin_token(
    service: LicenseService, tmp_path: Path
) -> None:
    data = signed(make_license())
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    async with connected(service, file) as client:
        for headers in (
            {},
            {"authorization": "Bearer another"},
            {"authorization": f"Basic {TOKEN}"},
            {"authorization": "Bearer "},
            {"authorization": "Bearer tok\xe9n".encode("latin-1").decode("latin-1")},
        ):
            encoded = {name: value.encode("latin-1") for name, value in headers.items()}
            answer = await client.post("/ls", files={"file": ("l", data)}, headers=encoded)
            assert answer.status_code == 401
        assert service.license is None
        assert (await upload(client, data, authorization=f"bearer {TOKEN}")).status_code == 200
        file.write_text("a-new-token")
        assert (await upload(client, data, authorization=f"Bearer {TOKEN}")).status_code == 401
        assert (await upload(client, data, authorization="Bearer a-new-token")).status_code == 200
        file.write_text("")
        assert (await upload(client, data, authorization="Bearer ")).status_code == 503


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        ({"content": b"x"}, 415),
        ({"content": b"x", "headers": {"content-type": "multipart/form-data"}}, 400),
        ({"content": b"x", "headers": {"content-type": "multipart/form-data; boundary=b"}}, 400),
        ({"files": {"other": ("name", b"x")}}, 400),
        ({"data": {"file": "x"}, "files": {"other": ("name", b"x")}}, 400),
        ({"files": [("file", ("name", b"x")), ("file", ("name", b"x"))]}, 400),
        ({"files": {"file": ("name", bytes(MAX_UPLOAD_BYTES))}}, 413),
    ],
)
async def test_an_invalid_upload_form_is_rejected(
    service: LicenseService, request_: dict[str, Any], status: int
) -> None:
    async with connected(service) as client:
        assert (await client.post("/ls", **request_)).status_code == status


async def test_leases(service: LicenseService, store: Store) -> None:
    await service.import_license(signed(make_license(2, access_limit=1)))
    mine = {"gpus": [ONE], "instance": "holder-1", "started": 1}
    async with connected(service) as client:
        granted = (await client.post("/ls/lease", json=mine)).json()
        assert granted["lease_seconds"] == LEASE_SECONDS
        assert granted["heartbeat_seconds"] == HEARTBEAT_SECONDS
        assert granted["license_seconds"] > 0
        for changes, status, code in (
            ({"instance": "b"}, 409, "in_use"),
            ({"gpus": [TWO]}, 409, "no_seat"),
            ({"gpus": ["another"]}, 403, "not_licensed"),
        ):
            answer = await client.post("/ls/lease", json=mine | changes)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
            assert "holder-1" not in answer.text, "who knows the holder may free its seat"
        assert (await client.post("/ls/release", json=mine)).status_code == 200
        taken = await client.post("/ls/lease", json=mine | {"gpus": [TWO], "instance": "b"})
        assert taken.status_code == 200
    refusal = next(entry.detail for entry in store.audit() if entry.event == "refused")
    assert refusal == f"in_use: {ONE} is in use by another instance, holder-1"


@pytest.mark.parametrize(
    "changes",
    [
        {"gpus": []},
        {"gpus": ONE},
        {"gpus": [ONE, ONE]},
        {"gpus": [1]},
        {"gpus": [str(index) for index in range(65)]},
        {"gpus": ["x" * 257]},
        {"instance": ""},
        {"instance": "a\nb"},
        {"instance": None},
        {"started": -1},
        {"started": 2**63},
        {"started": True},
        {"more": 1},
    ],
)
async def test_an_invalid_lease_request_is_rejected(
    service: LicenseService, changes: dict[str, Any]
) -> None:
    await service.import_license(signed(make_license(2)))
    body = {"gpus": [ONE], "instance": "a", "started": 1} | changes
    async with connected(service) as client:
        answer = await client.post("/ls/lease", json=body)
    assert answer.status_code == 400
    assert answer.text.count("\n") == 1


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"\xff", 400),
        (b"[" * 50_000, 400),
        (b"[]", 400),
        (b" " * (MAX_LEASE_BYTES + 1), 413),
    ],
)
async def test_a_lease_request_must_be_json(
    service: LicenseService, body: bytes, status: int
) -> None:
    async with connected(service) as client:
        assert (await client.post("/ls/lease", content=body)).status_code == status
        assert (await client.get("/")).status_code == 200


async def test_other_methods_and_paths(service: LicenseService) -> None:
    async with connected(service) as client:
        assert (await client.get("/ls")).status_code == 405
        assert (await client.get("/ls/lease")).status_code == 405
        assert (await client.delete("/ls/view")).status_code == 405
        assert (await client.get("/ls/../etc")).status_code == 404


async def test_a_full_disk_gives_507_and_keeps_the_license(
    service: LicenseService, store: Store
) -> None:
    await service.import_license(signed(make_license(2)))
    store._connection.execute("PRAGMA max_page_count = 1")
    async with connected(service) as client:
        answer = await upload(client, signed(make_license(2000, serial=2)))
        assert (answer.status_code, "the current license stays in use" in answer.text) == (
            507,
            True,
        )
        assert len(yaml.safe_load((await client.get("/ls/view")).text)["gpuinfos"]) == 2


async def test_metrics(service: LicenseService, clock: Clock) -> None:
    async with connected(service) as client:
        assert "taco:license_valid 0.0" in (await client.get("/metrics")).text
        await upload(client, signed(make_license(3, access_limit=2)))
        await client.post("/ls/lease", json={"gpus": [ONE], "instance": "a", "started": 1})
        await client.post("/ls/lease", json={"gpus": ["b"], "instance": "a", "started": 1})
        clock.wall -= 10
        lines = (await client.get("/metrics")).text.splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line.startswith("taco:license"))
    figures = {name: float(value) for name, value in pairs}
    assert figures == {
        "taco:license_valid": 1.0,
        "taco:license_seats_taken": 1.0,
        "taco:license_clock_behind_seconds": 10.0,
        "taco:license_storage_up": 1.0,
        "taco:license_seats": 2.0,
        "taco:license_gpus": 3.0,
        "taco:license_expiry_timestamp_seconds": make_license().expires,
        'taco:license_requests_total{outcome="granted"}': 1.0,
        'taco:license_requests_total{outcome="not_licensed"}': 1.0,
        'taco:license_imports_total{outcome="accepted"}': 1.0,
        "taco:license_storage_errors_total": 0.0,
    }


async def test_ten_thousand_gpus(service: LicenseService) -> None:
    async with connected(service) as client:
        assert (await upload(client, signed(make_license(10_000)))).status_code == 200
        text = (await client.get("/ls/view")).text
    assert text.count("- uuid: GPU-") == 10_000
