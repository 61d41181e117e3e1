"""A worker's license: the state that it reports, and that nothing waits for the server."""

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from support.away import WAYS, Away
from support.certificates import make_certificates, tls_config
from support.license_server import LicenseServer
from support.licenses import Clock, gpu_names, make_license, signed
from support.patience import PATIENCE_SECONDS, wait_until
from taco_common.tls import Role
from taco_license.addresses import DEFAULT_HOSTS
from taco_license.tls import TlsFiles
from taco_proto.config import LicenseConfig, ModelConfig, WorkerConfig
from taco_proto.errors import ConfigurationError
from taco_proto.licenses import NEEDS_NO_LICENSE, LicenseState, WorkerLicense
from taco_worker.license_ids import gpu_id
from taco_worker.licensing import Licensing

ONE, TWO = gpu_names(2)
WORKER = WorkerConfig(model=ModelConfig(model="none"), num_threads=1)


def config(address: str = "", **changes: object) -> WorkerConfig:
    """The configuration of a worker whose host is the second one of a license."""
    values = {"host_id": TWO, "address": address, "rejection_retry_seconds": 0.05, **changes}
    return replace(WORKER, license=LicenseConfig(**values))  # type: ignore[arg-type]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LicenseServer]:
    monkeypatch.setattr("taco_license.server.app.HEARTBEAT_SECONDS", 0.05)
    with LicenseServer(tmp_path / "licenses", Clock()) as server:
        server.replace(signed(make_license(2)))
        yield server


def listen(licensing: Licensing) -> Callable[[], WorkerLicense]:
    """Returns the state after the next change."""
    changes: queue.SimpleQueue[WorkerLicense] = queue.SimpleQueue()
    licensing.on_change = lambda: changes.put(licensing.current())
    return lambda: changes.get(timeout=PATIENCE_SECONDS)


def until_state(change: Callable[[], WorkerLicense], state: LicenseState) -> WorkerLicense:
    while (license_ := change()).state is not state:
        pass
    return license_


def test_no_license_is_needed_without_a_license_config() -> None:
    licensing = Licensing(WORKER)
    licensing.ask()
    assert licensing.wait_for_answer() == licensing.current() == NEEDS_NO_LICENSE
    licensing.close()


def test_a_license_is_acquired_lost_and_reacquired(server: LicenseServer) -> None:
    with closing(Licensing(config(server.address))) as licensing:
        assert licensing.current().state is LicenseState.ASKED
        change = listen(licensing)
        licensing.ask()
        assert licensing.wait_for_answer() == NEEDS_NO_LICENSE
        until_state(change, LicenseState.VALID)
        server.replace(signed(make_license(1, serial=2)))
        reason = until_state(change, LicenseState.MISSING).reason
        assert reason.startswith("not_licensed: ")
        server.replace(signed(make_license(2, serial=3)))
        until_state(change, LicenseState.VALID)
        assert server.service.ledger.num_seats == 1
    wait_until(lambda: server.service.ledger.num_seats == 0, "a free seat")


def test_a_worker_authenticates_with_its_certificate(tmp_path: Path) -> None:
    files = make_certificates(tmp_path / "tls", Role.WORKER, Role.LICENSE_SERVER)
    own, servers = tls_config(files, Role.WORKER), tls_config(files, Role.LICENSE_SERVER)
    tls = TlsFiles(servers.ca_file, servers.cert_file, servers.key_file)
    with LicenseServer(tmp_path / "licenses", Clock(), tls) as server:
        server.replace(signed(make_license(2)))
        bare = server.address.removeprefix("https://")  # certificate files imply https
        with closing(Licensing(replace(config(bare), tls=own))) as licensing:
            licensing.ask()
            assert licensing.wait_for_answer() == NEEDS_NO_LICENSE
        with closing(Licensing(config(server.address, start_seconds=0.1))) as licensing:
            licensing.ask()
            assert licensing.wait_for_answer().state is LicenseState.MISSING


def test_a_license_survives_a_short_server_outage(server: LicenseServer) -> None:
    with closing(Licensing(config(server.address))) as licensing:
        change = listen(licensing)
        licensing.ask()
        assert licensing.wait_for_answer() == NEEDS_NO_LICENSE
        until_state(change, LicenseState.VALID)
        server.stop()
        assert change() == NEEDS_NO_LICENSE, "a change for the log alone"


@pytest.mark.parametrize("away", WAYS)
def test_starting_does_not_wait_for_an_unreachable_server(
    away: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CONNECT_SECONDS", "ANSWER_SECONDS"):  # closing waits for a running request
        monkeypatch.setattr(f"taco_license.seat_client.{name}", 0.1)
    with away() as address, closing(Licensing(config(address, start_seconds=0.1))) as licensing:
        licensing.ask()
        assert licensing.current().state is LicenseState.ASKED
        assert licensing.wait_for_answer().state is LicenseState.MISSING
        assert "the license server" in licensing.current().reason


def test_no_license_is_needed_where_no_server_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: queue.SimpleQueue[str] = queue.SimpleQueue()

    def look_up(host: str, *_: object, **__: object) -> None:
        looked_up.put(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with closing(Licensing(config(only_if_found=True))) as licensing:
        licensing.ask()
        asked = {looked_up.get(timeout=PATIENCE_SECONDS) for _ in DEFAULT_HOSTS}
        assert asked == {host.rpartition(":")[0] for host in DEFAULT_HOSTS}
        assert licensing._start_thread is not None
        licensing._start_thread.join(PATIENCE_SECONDS)
        assert licensing.wait_for_answer() == NEEDS_NO_LICENSE


def test_a_license_is_needed_as_soon_as_a_server_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    is_known = threading.Event()
    look_up = socket.getaddrinfo

    def look_up_late(host: str, port: int, *arguments: object, **options: object) -> object:
        is_known.wait()
        return look_up("127.0.0.1", 1, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", look_up_late)
    with closing(Licensing(config(only_if_found=True, start_seconds=0.1))) as licensing:
        change = listen(licensing)
        licensing.ask()
        assert licensing.wait_for_answer() == NEEDS_NO_LICENSE, "the look-up blocks nothing"
        is_known.set()
        assert "does not answer" in until_state(change, LicenseState.MISSING).reason


def test_a_closed_worker_requests_no_license(server: LicenseServer) -> None:
    licensing = Licensing(config(server.address))
    licensing.close()
    licensing.ask()
    assert licensing._start_thread is not None
    licensing._start_thread.join(PATIENCE_SECONDS)
    assert server.service.ledger.num_seats == 0


def test_a_failed_license_request_is_a_missing_license(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("taco_license.seat_client._BOOT_ID", Path("/no/such/file"))
    with closing(Licensing(config("http://127.0.0.1:1"))) as licensing:
        change = listen(licensing)
        licensing.ask()
        reason = "requesting a license failed: FileNotFoundError"
        assert (
            change() == licensing.wait_for_answer() == WorkerLicense(LicenseState.MISSING, reason)
        )


def test_a_missing_device_is_one_clear_error() -> None:
    with pytest.raises(ConfigurationError, match="device 'cuda' cannot be used"):
        Licensing(replace(config("http://127.0.0.1:1"), device="cuda")).ask()


@pytest.mark.parametrize(
    ("name", "environment", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", {}, "GPU-4c34"),
        ("NVIDIA H100 80GB HBM3", {"CUDA_VISIBLE_DEVICES": "1,0"}, "GPU-4c34"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", {}, "MIG-4c34"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", {"CUDA_VISIBLE_DEVICES": "MIG-7a"}, "MIG-7a"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", {"NVIDIA_VISIBLE_DEVICES": "MIG-7a"}, "MIG-7a"),
        ("x", {"CUDA_VISIBLE_DEVICES": "MIG-GPU-4c34/1/0,MIG-7a"}, "MIG-GPU-4c34/1/0"),
        (
            "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
            {"NVIDIA_VISIBLE_DEVICES": "MIG-7a,MIG-4c34", "CUDA_VISIBLE_DEVICES": "1"},
            "MIG-4c34",
        ),
    ],
)
def test_ids_are_those_of_nvidia_smi(name: str, environment: dict[str, str], expected: str) -> None:
    assert gpu_id(name, "4c34", environment) == expected
