"""A worker's license: taken, kept, lost, and kept for a while when the server is away."""

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
from taco_license.client import (
    LicenseClient,
    Standing,
    this_instance,
)
from taco_license.ledger.leases import HEARTBEAT_SECONDS, LEASE_SECONDS

ONE, TWO = gpu_names(2)
GRACE = 600.0
GOOD = Standing(True, "")


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
    """The address of a server that sends the same bytes to everybody."""

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


def test_a_lease_is_taken_and_kept(server: LicenseServer, clock: Clock) -> None:
    client, other = make_client(clock, server.address), make_client(clock, server.address, gpu=TWO)
    assert not client.standing().is_valid
    for _ in range(5):
        assert 0 < client.beat() <= HEARTBEAT_SECONDS
        assert client.standing() == GOOD
        other.beat()
        assert other.standing() == Standing(
            False, "no_seat: 1 of 1 seats are taken; 1 more are asked for"
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
    assert client.standing() == GOOD
    # One that begins later counts as later, though its date is an earlier one.
    successor = make_client(clock, server.address)
    successor.beat()
    client._release()
    assert server.service.ledger.num_seats == 1


def test_a_client_that_ends_gives_its_seat_back(server: LicenseServer, clock: Clock) -> None:
    client = make_client(clock, server.address)
    client.start()
    assert client.wait() == GOOD
    client.close()
    wait_until(lambda: server.service.ledger.num_seats == 0, "a free seat")
    successor = make_client(clock, server.address, gpu=TWO)
    successor.beat()
    assert successor.standing() == GOOD


def test_a_refusal_ends_the_license_at_once(server: LicenseServer, clock: Clock) -> None:
    client = make_client(clock, server.address, gpu=TWO)
    client.beat()
    server.replace(signed(make_license(1, serial=2)))
    client.beat()
    standing = client.standing()
    assert not standing.is_valid
    assert standing.reason.startswith("not_licensed")
    server.replace(signed(make_license(2, serial=3)))
    client.beat()
    assert client.standing() == GOOD


def test_a_server_that_is_away_is_missed_after_the_grace(
    server: LicenseServer, clock: Clock
) -> None:
    client = make_client(clock, server.address)
    client.beat()
    server.stop()
    assert client.beat() > 0
    clock.advance(LEASE_SECONDS + GRACE - 1)
    assert client.standing().is_valid
    assert "does not answer" in client.standing().reason
    clock.advance(1)
    assert not client.standing().is_valid
    server.start()
    client.beat()
    assert client.standing() == GOOD


def test_no_grace_goes_beyond_the_license(server: LicenseServer, clock: Clock) -> None:
    clock.advance(2 * DAY - 100)
    client = make_client(clock, server.address)
    client.beat()
    server.stop()
    clock.advance(99)
    assert client.standing().is_valid
    clock.advance(1)
    assert not client.standing().is_valid


def test_a_server_that_lost_its_license_is_as_good_as_away(tmp_path: Path, clock: Clock) -> None:
    with LicenseServer(tmp_path / "one", clock) as server:
        server.replace(signed(make_license()))
        client = make_client(clock, server.address)
        client.beat()
        server.stop()
        server._directory = tmp_path / "two"
        server.start()
        client.beat()
        assert client.standing().is_valid
        assert client.standing().reason.startswith("no_license")
        clock.advance(LEASE_SECONDS + GRACE)
        assert not client.standing().is_valid
        server.replace(signed(make_license()))
        client.beat()
        assert client.standing() == GOOD


def test_the_second_address_is_asked_where_the_first_is_away(
    server: LicenseServer, clock: Clock
) -> None:
    away = f"http://127.0.0.1:{free_port()}"
    for addresses in ((away, server.address), ("http://nowhere.invalid:1", server.address)):
        client = make_client(clock, *addresses)
        client.beat()
        assert client.standing() == GOOD


def test_nobody_waits_for_a_server_that_does_not_answer(clock: Clock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as black_hole:
        address = f"http://127.0.0.1:{black_hole.getsockname()[1]}"
        client = make_client(clock, address, start_seconds=0.01)
        client.start()
        silent = "the license server has not answered yet"
        assert client.standing() == Standing(False, silent, is_pending=True)
        assert client.wait() == Standing(False, silent, is_pending=True)  # by its own clock
        clock.advance(0.01)
        assert client.standing() == Standing(False, silent)
    client.close()


def test_an_answer_that_drips_is_none(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taco_license.client.ANSWER_SECONDS", 0.2)
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
    assert client.standing().reason.endswith(": timed out")


def test_a_seat_is_given_back_to_who_takes_it(server: LicenseServer, clock: Clock) -> None:
    with answering(b"HTTP/1.1 503 Away\r\nContent-Length: 0\r\n\r\n") as away:
        client = make_client(clock, server.address)
        client.beat()
        assert server.service.ledger.num_seats == 1
        client._addresses = (away, server.address)
        client._release()
        assert server.service.ledger.num_seats == 0


def test_a_server_that_is_away_has_some_time_to_come(clock: Clock) -> None:
    client = LicenseClient([ONE], [f"http://127.0.0.1:{free_port()}"], "a", start_seconds=0.2)
    heard: queue.SimpleQueue[Standing] = queue.SimpleQueue()
    client.on_change = lambda: heard.put(client.standing())
    client.start()
    assert client.standing().is_pending
    while (standing := heard.get(timeout=PATIENCE_SECONDS)).is_pending:
        pass
    assert not standing.is_valid
    assert standing.reason.startswith("the license server does not answer: http://127.0.0.1:")
    client.close()
    assert client.wait() == client.standing()


def test_changes_are_told_and_logged_once(
    server: LicenseServer, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    client = make_client(clock, server.address, gpu=TWO)
    heard: list[bool] = []
    client.on_change = lambda: heard.append(client.standing().is_valid)

    def news() -> list[str]:
        client.beat()
        lines = [r.getMessage() for r in caplog.records if r.name == "taco.license.client"]
        caplog.clear()
        return lines

    assert (news(), news(), heard) == (["licensed"], [], [True])
    server.replace(signed(make_license(1, serial=2)))
    [line] = news()
    assert line.startswith("the license has lapsed: not_licensed: ")
    assert line.endswith("; new requests are refused")
    server.replace(signed(make_license(2, serial=3)))
    assert (news(), heard) == (["licensed"], [True, False, True])
    server.stop()
    [line] = news()
    assert line.startswith("the license server does not answer: ")
    assert line.endswith("; the license is good for 660 s more")
    clock.advance(LEASE_SECONDS + GRACE)
    [line] = news()
    assert line.startswith("the license has lapsed: the license server does not answer: ")
    server.start()
    assert (news(), heard[3:]) == (["licensed"], [True, False, True])


def test_a_listener_that_fails_costs_no_license(server: LicenseServer, clock: Clock) -> None:
    client = make_client(clock, server.address)
    client.on_change = lambda: 1 // 0  # type: ignore[assignment]
    client.beat()
    assert client.standing() == GOOD


def test_a_lapse_is_told_when_it_happens(server: LicenseServer) -> None:
    client = LicenseClient([ONE], [server.address], "a", grace_seconds=-59.8)
    heard: queue.SimpleQueue[Standing] = queue.SimpleQueue()
    client.on_change = lambda: heard.put(client.standing())
    client.start()
    assert heard.get(timeout=PATIENCE_SECONDS) == GOOD
    # Long before the next heartbeat is due.
    assert not heard.get(timeout=HEARTBEAT_SECONDS / 2).is_valid
    client.close()


def test_a_server_that_comes_late_is_found(tmp_path: Path, clock: Clock) -> None:
    server = LicenseServer(tmp_path / "server", clock)
    client = make_client(clock, server.address)
    client.start()
    assert not client.standing().is_valid
    with server:
        server.replace(signed(make_license()))
        wait_until(lambda: client.standing() == GOOD, "a license")
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
def test_what_is_no_license_server_grants_and_refuses_nothing(
    server: LicenseServer, clock: Clock, answer: bytes
) -> None:
    with answering(answer) as address:
        client = make_client(clock, address)
        client.beat()
        assert not client.standing().is_valid
        assert "does not answer" in client.standing().reason
        client = make_client(clock, server.address)
        client.beat()
        client._addresses = (address,)
        client.beat()
        assert client.standing().is_valid


def test_this_instance_is_the_same_for_all_processes_here() -> None:
    assert this_instance() == this_instance() != ""
