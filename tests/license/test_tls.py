"""A license server over mutual TLS: roles of certificates, renewed files."""

import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.certificates import EXPIRED, LIFETIME, make_certificates
from support.license_server import LicenseServer
from support.licenses import Clock, gpu_names, make_license, signed
from support.patience import PATIENCE_SECONDS, wait_until
from taco_common.tls import Role
from taco_license.seat_client import LicenseClient, LicenseStatus
from taco_license.tls import TlsFiles, client_context
from taco_llm.certificates import issue

(ONE,) = gpu_names(1)
GOOD = LicenseStatus(True, "")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_certificates(tmp_path / "tls", *Role)


@pytest.fixture
def server(tmp_path: Path, directory: Path, clock: Clock) -> Iterator[LicenseServer]:
    with LicenseServer(tmp_path / "server", clock, files(directory, Role.LICENSE_SERVER)) as server:
        server.replace(signed(make_license(1)))
        yield server


def files(directory: Path, role: Role, authority: Path | None = None) -> TlsFiles:
    return TlsFiles(
        str((authority or directory) / "ca.crt"),
        str(directory / f"{role}.crt"),
        str(directory / f"{role}.key"),
    )


def make_client(server: LicenseServer, clock: Clock, tls: TlsFiles | None) -> LicenseClient:
    return LicenseClient([ONE], [server.address], "a", clock=lambda: clock.monotonic, tls=tls)


def browser(server: LicenseServer, tls: TlsFiles) -> httpx.Client:
    """A client like an operator's curl. It does not check the host name of the server."""
    context = client_context(tls)
    context.check_hostname = False
    return httpx.Client(base_url=server.address, verify=context, timeout=PATIENCE_SECONDS)


def test_a_worker_takes_and_releases_a_seat(
    server: LicenseServer, directory: Path, clock: Clock
) -> None:
    client = make_client(server, clock, files(directory, Role.WORKER))
    client.start()
    assert client.wait() == GOOD
    assert server.service.ledger.num_seats == 1
    client.close()
    wait_until(lambda: server.service.ledger.num_seats == 0, "a free seat")


def test_metrics_say_when_the_certificate_expires(server: LicenseServer, directory: Path) -> None:
    with browser(server, files(directory, Role.CLIENT)) as client:
        page = client.get("/metrics").text
    end = float(page.split("\ntaco:certificate_expiry_timestamp_seconds ")[1].split()[0])
    assert 0 < end - time.time() <= LIFETIME.total_seconds()


def test_each_route_accepts_its_roles_only(server: LicenseServer, directory: Path) -> None:
    upload = {"files": {"file": signed(make_license(1, serial=2))}}
    routes = {
        ("GET", "/"): {},
        ("GET", "/ls/view"): {},
        ("GET", "/metrics"): {},
        ("POST", "/ls"): upload,
        ("POST", "/ls/lease"): {"content": b"{}"},
        ("POST", "/ls/release"): {"content": b"{}"},
    }
    allowed = {}
    for role in Role:
        with browser(server, files(directory, role)) as client:
            allowed[role] = {
                path
                for (method, path), options in routes.items()
                if client.request(method, path, **options).status_code != 403  # type: ignore[arg-type]
            }
    assert {role: paths for role, paths in allowed.items() if paths} == {
        Role.CLIENT: {"/", "/ls", "/ls/view", "/metrics"},
        Role.WORKER: {"/", "/ls/lease", "/ls/release"},
    }


def test_clients_without_a_worker_certificate_get_no_seat(
    server: LicenseServer, directory: Path, tmp_path: Path, clock: Clock
) -> None:
    good = make_client(server, clock, files(directory, Role.WORKER))
    good.beat()
    other = make_certificates(tmp_path / "other", Role.WORKER, Role.LICENSE_SERVER)
    strangers = {
        "another role's": files(directory, Role.CLIENT),
        "another authority's": files(other, Role.WORKER, authority=directory),
        "none": None,
    }
    for kind, tls in strangers.items():
        client = make_client(server, clock, tls)
        client.beat()
        assert not client.status().is_valid, kind
    plain = LicenseClient([ONE], [server.address.replace("https", "http")], "a")
    plain.beat()
    assert not plain.status().is_valid
    good.beat()
    assert good.status() == GOOD


def test_a_worker_accepts_only_a_license_servers_certificate(
    tmp_path: Path, directory: Path, clock: Clock
) -> None:
    other = make_certificates(tmp_path / "other", Role.LICENSE_SERVER)
    for tls in (
        files(directory, Role.WORKER),
        files(other, Role.LICENSE_SERVER, authority=directory),
    ):
        with LicenseServer(tmp_path / "impostor", clock, tls) as impostor:
            impostor.replace(signed(make_license(1)))
            client = make_client(impostor, clock, files(directory, Role.WORKER))
            client.beat()
            assert not client.status().is_valid
            assert "CERTIFICATE_VERIFY_FAILED" in client.status().reason


def test_renewed_files_apply_from_the_next_connection(
    server: LicenseServer, directory: Path, clock: Clock
) -> None:
    client = make_client(server, clock, files(directory, Role.WORKER))

    def is_granted() -> bool:
        client.beat()
        return client.status().reason == ""

    assert is_granted()
    for role in (Role.WORKER, Role.LICENSE_SERVER):
        issue(directory, role, EXPIRED)
        assert not is_granted()
        issue(directory, role, LIFETIME)
        assert is_granted()

    # Unusable files: the old certificate stays in use.
    good = (directory / "license-server.key").read_bytes()
    (directory / "license-server.key").write_bytes(b"")
    assert is_granted()
    (directory / "license-server.key").unlink()
    assert is_granted()
    (directory / "license-server.key").write_bytes(good)

    # The authority is new as well: clients with old files are rejected.
    old = client_context(files(directory, Role.CLIENT))
    new = make_certificates(directory.parent / "new", *Role)
    for file in new.iterdir():
        file.replace(directory / file.name)
    assert is_granted()
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    with (
        httpx.Client(base_url=server.address, verify=old) as stranger,
        pytest.raises(httpx.TransportError),
    ):
        stranger.get("/ls/view")
