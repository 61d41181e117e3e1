"""Which addresses other machines reach, and the warning for listeners that ask for nothing."""

import logging

import pytest

from taco_common.admin import warn_of_open_admin
from taco_common.listener import is_private

PRIVATE = ["unix:/s", "127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1"]
OPEN = ["0.0.0.0:1", ":1", "[::]:1", "10.0.0.5:1", "[fe80::1]:1", "host:1", "127.0.0.1.example:1"]


@pytest.mark.parametrize("address", PRIVATE)
def test_only_this_machine_reaches_these(address: str, caplog: pytest.LogCaptureFixture) -> None:
    assert is_private(address)
    warn_of_open_admin(logging.getLogger("taco.admin"), address)
    assert not caplog.records


@pytest.mark.parametrize("address", OPEN)
def test_others_reach_these(address: str, caplog: pytest.LogCaptureFixture) -> None:
    assert not is_private(address)
    warn_of_open_admin(logging.getLogger("taco.admin"), address)
    assert f"anyone who reaches the admin listener on {address}" in caplog.text
