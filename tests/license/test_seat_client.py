"""The license client: lease, heartbeats, rejection, grace period while the server is down."""

import logging
import queue
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.license_server import LicenseServer
from support.licenses import DAY, Clock, gpu_names, make_license, signed
from support.patience import PATIENCE_SECONDS, wait_until
from support.serving import free_port
from taco_license.ledger.leases import HEARTBEAT_SECONDS, LEASE_SECONDS
from taco_license.seat_client import (
    LicenseClient,
    LicenseStatus,
    this_instance,
)

ONE, TWO = gpu_names(2)
GRACE = 600.0
GOOD = LicenseStatus(True, "")


@pytest.fixture
def server(tmp_path: Path, clock: Clock) -> Iterator[LicenseServer]:
    with LicenseServer(tmp_path / "server", clock) as server:
        server.replace(signed(make_license(2, access_limit=1, days=3)))
        yield server


def make_client(
    clock: Clock, *addresses: str, gpu: str = ONE, instance: str = "a", start_seconds: float = 30.0
) -> LicenseClient:
    return LicenseClient(
        [gpu],
        addresses,
        instance,
        grace_seconds=GRACE,
        start_seconds=start_seconds,
        clock=lambda: clock.monotonic,
    )


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """The address of a server that sends the same bytes to every client."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            self.request.sendall(answer)

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_lease_is_taken_and_renewed(server: LicenseServer, clock: Clock) -> None:
    client, other = make_client(clock, server.address), make_client(clock, server.address, gpu=TWO)
    assert not client.status().is_valid
    for _ in range(5):
        assert 0 < client.beat() <= HEARTBEAT_SECONDS
        assert client.status() == GOOD
        other.beat()
        assert other.status() == LicenseStatus(
            False, "no_seat: 1 of 1 seats are taken; 1 more were requested"
        )
        clock.advance(HEARTBEAT_SECONDS)


def test_the_date_of_a_workers_machine_does_not_matter(
    server: LicenseServer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tomorrow = time.time_ns() + int(DAY * 1e9)
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: tomorrow)
        client = make_client(clock, server.address)
    client.beat()
    assert client.status() == GOOD
    # One that begins later counts as later, though its date is an earlier one.
    successor = make_client(clock, server.address)
    successor.beat()
    client._release()
    assert server.service.ledger.num_seats == 1


def test_a_closing_client_releases_its_seat(server: LicenseServer, clock: Clock) -> None:
    client = make_client(clock, server.address)
    client.start()
    assert client.wait() == GOOD
    client.close()
    wait_until(lambda: server.service.ledger.num_seats == 0, "a free seat")
    successor = make_client(clock, server.address, gpu=TWO)
    successor.beat()
    assert successor.status() == GOOD


def test_a_rejection_ends_the_license_at_once(server: LicenseServer, clock: Clock) -> None:
    client = make_client(clock, server.address, gpu=TWO)
    client.beat()
    server.replace(signed(make_license(1, serial=2)))
    client.beat()
    status = client.status()
    assert not status.is_valid
    assert status.reason.startswith("not_licensed")
    server.replace(signed(make_license(2, serial=3)))
    client.beat()
    assert client.status() == GOOD


def test_an_unavailable_server_ends_the_license_after_the_grace_period(
    server: LicenseServer, clock: Clock
) -> None:
    client = make_client(clock, server.address)
    client.beat()
    server.stop()
    assert client.beat() > 0
    clock.advance(LEASE_SECONDS + GRACE - 1)
    assert client.status().is_valid
    assert "does not answer" in client.status().reason
    clock.advance(1)
    assert not client.status().is_valid
    server.start()
    client.beat()
    assert client.status() == GOOD


def test_the_grace_period_ends_with_the_license(server: LicenseServer, clock: Clock) -> None:
    clock.advance(2 * DAY - 100)
    client = make_client(clock, server.address)
    client.beat()
    server.stop()
    clock.advance(99)
    assert client.status().is_valid
    clock.advance(1)
    assert not client.status().is_valid


def test_a_server_without_a_license_does_not_revoke_a_lease(tmp_path: Path, clock: Clock) -> None:
    with LicenseServer(tmp_path / "one", clock) as server:
        server.replace(signed(make_license()))
        client = make_client(clock, server.address)
        client.beat()
        server.stop()
        server._directory = tmp_path / "two"
        server.start()
        client.beat()
        assert client.status().is_valid
        assert client.status().reason.startswith("no_license")
        clock.advance(LEASE_SECONDS + GRACE)
        assert not client.status().is_valid
        server.replace(signed(make_license()))
        client.beat()
        assert client.status() == GOOD


def test_the_second_address_is_tried_after_the_first(server: LicenseServer, clock: Clock) -> None:
    away = f"http://127.0.0.1:{free_port()}"
    for addresses in ((away, server.address), ("http://nowhere.invalid:1", server.address)):
        client = make_client(clock, *addresses)
        client.beat()
        assert client.status() == GOOD


def test_connecting_times_out(clock: Clock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as black_hole:
        address = f"http://127.0.0.1:{black_hole.getsockname()[1]}"
        client = make_client(clock, address, start_seconds=0.01)
        client.start()
        silent = "the license server has not answered yet"
        assert client.status() == LicenseStatus(False, silent, is_pending=True)
        assert client.wait() == LicenseStatus(False, silent, is_pending=True)  # by its own clock
        clock.advance(0.01)
        assert client.status() == LicenseStatus(False, silent)
    client.close()


def test_a_slow_answer_times_out(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taco_license.seat_client.ANSWER_SECONDS", 0.2)
    has_heard = threading.Event()

    class Drip(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + b"x" * 40:
                self.request.sendall(bytes([byte]))
                if has_heard.wait(0.02):
                    return

    with socketserver.TCPServer(("127.0.0.1", 0), Drip) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        client = make_client(clock, f"http://127.0.0.1:{server.server_address[1]}")
        client.beat()
        has_heard.set()
        thread.join()
    assert client.status().reason.endswith(": timed out")


def test_the_seat_is_released_at_the_server_that_answers(
    server: LicenseServer, clock: Clock
) -> None:
    with answering(b"HTTP/1.1 503 Away\r\nContent-Length: 0\r\n\r\n") as away:
        client = make_client(clock, server.address)
        client.beat()
        assert server.service.ledger.num_seats == 1
        client._addresses = (away, server.address)
        client._release()
        assert server.service.ledger.num_seats == 0


def test_the_status_is_pending_while_the_server_starts(clock: Clock) -> None:
    client = LicenseClient([ONE], [f"http://127.0.0.1:{free_port()}"], "a", start_seconds=0.2)
    heard: queue.SimpleQueue[LicenseStatus] = queue.SimpleQueue()
    client.on_change = lambda: heard.put(client.status())
    client.start()
    assert client.status().is_pending
    while (status := heard.get(timeout=PATIENCE_SECONDS)).is_pending:
        pass
    assert not status.is_valid
    assert status.reason.startswith("the license server does not answer: http://127.0.0.1:")
    client.close()
    assert client.wait() == client.status()


def test_status_changes_are_reported_and_logged_once(
    server: LicenseServer, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    client = make_client(clock, server.address, gpu=TWO)
    heard: list[bool] = []
    client.on_change = lambda: heard.append(client.status().is_valid)

    def log_lines() -> list[str]:
        client.beat()
        lines = [r.getMessage() for r in caplog.records if r.name == "taco.license.client"]
        caplog.clear()
        return lines

    assert (log_lines(), log_lines(), heard) == (["licensed"], [], [True])
    server.replace(signed(make_license(1, serial=2)))
    [line] = log_lines()
    assert line.startswith("the license has lapsed: not_licensed: ")
    assert line.endswith("; the worker rejects new requests")
    server.replace(signed(make_license(2, serial=3)))
    assert (log_lines(), heard) == (["licensed"], [True, False, True])
    server.stop()
    [line] = log_lines()
    assert line.startswith("the license server does not answer: ")
    assert line.endswith("; the license stays valid for 660 s")
    clock.advance(LEASE_SECONDS + GRACE)
    [line] = log_lines()
    assert line.startswith("the license has lapsed: the license server does not answer: ")
    server.start()
    assert (log_lines(), heard[3:]) == (["licensed"], [True, False, True])


def test_a_failing_listener_does_not_end_the_client(server: LicenseServer, clock: Clock) -> None:
    client = make_client(clock, server.address)
    client.on_change = lambda: 1 // 0  # type: ignore[assignment]
    client.beat()
    assert client.status() == GOOD


def test_a_lapse_is_reported_when_it_happens(server: LicenseServer) -> None:
    client = LicenseClient([ONE], [server.address], "a", grace_seconds=-59.8)
    heard: queue.SimpleQueue[LicenseStatus] = queue.SimpleQueue()
    client.on_change = lambda: heard.put(client.status())
    client.start()
    assert heard.get(timeout=PATIENCE_SECONDS) == GOOD
    # Long before the next heartbeat is due.
    assert not heard.get(timeout=HEARTBEAT_SECONDS / 2).is_valid
    client.close()


def test_a_late_server_is_found(tmp_path: Path, clock: Clock) -> None:
    server = LicenseServer(tmp_path / "server", clock)
    client = make_client(clock, server.address)
    client.start()
    assert not client.status().is_valid
    with server:
        server.replace(signed(make_license()))
        wait_until(lambda: client.status() == GOOD, "a license")
        client.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"no HTTP at all",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50000\r\n\r\n" + b"[" * 50_000,
        b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 70\r\n\r\n"
        b'{"lease_seconds":NaN,"heartbeat_seconds":1,"license_seconds":Infinity}',
        b"HTTP/1.1 200 OK\r\nContent-Length: 65\r\n\r\n"
        b'{"lease_seconds":1,"heartbeat_seconds":1,"license_seconds":"100"}',
        b"HTTP/1.1 403 Forbidden\r\nContent-Length: 43\r\n\r\n"
        b'{"error":{"code":"c","message":"\\ud800 x"}}',
        b"HTTP/1.1 403 Forbidden\r\nContent-Length: 38\r\n\r\n"
        b'{"error":{"code":"c","message":"a\\n"}}',
    ],
)
def test_other_servers_neither_grant_nor_reject(
    server: LicenseServer, clock: Clock, answer: bytes
) -> None:
    with answering(answer) as address:
        client = make_client(clock, address)
        client.beat()
        assert not client.status().is_valid
        assert "does not answer" in client.status().reason
        client = make_client(clock, server.address)
        client.beat()
        client._addresses = (address,)
        client.beat()
        assert client.status().is_valid


def test_this_instance_is_the_same_for_all_processes_here() -> None:
    assert this_instance() == this_instance() != ""
