"""Addresses of license servers, and DNS look-ups of their hosts."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from taco_license.addresses import any_host_resolves, server_addresses


@pytest.mark.parametrize(
    ("value", "addresses"),
    [
        ("http://10.10.161.72:10080", ("http://10.10.161.72:10080",)),
        ("https://license.example", ("https://license.example",)),
        ("10.10.161.72:10080", ("http://10.10.161.72:10080",)),
        ("http://10.10.161.72:10080/", ("http://10.10.161.72:10080",)),
    ],
)
def test_addresses_from_the_environment(value: str, addresses: tuple[str, ...]) -> None:
    assert server_addresses({"TACO_LS_ADDR": value}) == addresses


@pytest.mark.parametrize(("has_tls", "scheme"), [(False, "http"), (True, "https")])
def test_default_addresses_and_schemes(has_tls: bool, scheme: str) -> None:
    in_cluster = f"{scheme}://taco-license-server.kube-system.svc.cluster.local:10080"
    expected = (in_cluster, f"{scheme}://taco-license-server:10080")
    assert server_addresses({}, has_tls=has_tls) == expected
    assert server_addresses({"TACO_LS_ADDR": ""}, has_tls=has_tls) == expected
    assert server_addresses({"TACO_LS_ADDR": "10.0.0.7:1"}, has_tls=has_tls) == (
        f"{scheme}://10.0.0.7:1",
    )


@pytest.mark.parametrize("value", ["ftp://server", "http://", "http://server:70000", "http://[x"])
def test_invalid_addresses_are_rejected(value: str) -> None:
    with pytest.raises(ValueError, match="TACO_LS_ADDR must be"):
        server_addresses({"TACO_LS_ADDR": value})


@contextmanager
def names(**hosts: bool | threading.Event) -> Iterator[None]:
    """Replaces DNS: which names resolve. A name with an event blocks until the event is set."""

    def look_up(host: str, port: int, **_: Any) -> list[Any]:
        outcome = hosts[host]
        if isinstance(outcome, threading.Event):
            outcome.wait()
        elif not outcome:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.7", port))]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", look_up)
        yield


def test_one_resolving_host_is_enough() -> None:
    with names(a=False, b=True):
        assert any_host_resolves(["http://a:1", "https://b:1"])
        assert not any_host_resolves(["http://a:1"])


def test_a_hanging_look_up_does_not_block() -> None:
    hangs = threading.Event()
    try:
        with names(a=hangs, b=True, c=False):
            assert any_host_resolves(["http://a:1", "http://b:1"], seconds=60)
            assert not any_host_resolves(["http://a:1", "http://c:1"], seconds=0.01)
    finally:
        hangs.set()


def test_an_invalid_host_name_does_not_resolve() -> None:
    assert not any_host_resolves([f"http://{'x' * 64}.a:1"], seconds=60)
