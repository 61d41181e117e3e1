"""Addresses that servers accept on, and those that they cannot."""

import socket
from pathlib import Path

import pytest

from support.serving import free_port
from taco_common.listener import listen
from taco_proto.errors import ConfigurationError


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:70000", "it is not host:port"),
        ("127.0.0.1:x", "it is not host:port"),
        ("192.0.2.1:7100", "Cannot assign requested address"),
        ("unix:/none/x.sock", "No such file or directory"),
        (f"unix:/tmp/{'x' * 200}", "path too long"),
    ],
)
def test_an_impossible_address_is_one_line(address: str, reason: str) -> None:
    with (
        pytest.raises(ConfigurationError, match=f"cannot listen on .*{reason}"),
        listen(address, unix_mode=0o600),
    ):
        pass


def test_a_port_in_use_is_named_once_with_what_to_do() -> None:
    address = f"127.0.0.1:{free_port()}"
    with (
        listen(address, unix_mode=0o600),
        pytest.raises(ConfigurationError) as error,
        listen(address, unix_mode=0o600),
    ):
        pass
    assert str(error.value) == (
        f"cannot listen on {address}: Address already in use; stop the process that uses it, or "
        "give another port"
    )


def test_a_socket_in_use_and_another_file_stay(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    address = f"unix:{path}"
    with listen(address, unix_mode=0o600):
        with pytest.raises(ConfigurationError, match="in use"), listen(address, unix_mode=0o600):
            pass
        assert path.is_socket()
    path.write_text("x")
    with pytest.raises(ConfigurationError, match="in use"), listen(address, unix_mode=0o600):
        pass
    assert path.read_text() == "x"


def test_without_a_host_it_is_on_every_network() -> None:
    port = free_port()
    with listen(f":{port}", unix_mode=0o600):
        for host in ["127.0.0.1", "::1"] if has_ipv6() else ["127.0.0.1"]:
            socket.create_connection((host, port)).close()


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True
