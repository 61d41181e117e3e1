"""What this project uses of uvicorn beyond its public interface.

Each assertion names one method, attribute or parameter. Where one fails after an upgrade of
uvicorn, look at `taco_common/{http_protocol,no_upgrade_protocol,http_server}.py` and
`taco_license/server/` before you raise the upper bound in pyproject.toml.
"""

import inspect
import tomllib
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from packaging.requirements import Requirement
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from taco_common.http_protocol import BoundedHttpProtocol
from taco_common.no_upgrade_protocol import NoUpgradeProtocol
from taco_license.server.http_protocol import BoundedHttpProtocol as LicenseHttpProtocol
from taco_license.server.role_protocol import RoleHttpProtocol

ROOT = Path(__file__).parents[2]
ADVICE = "uvicorn has changed: see this file's first lines"

# Overridden, and called by uvicorn or by httptools with these parameters.
OVERRIDDEN = {
    "connection_made": ["transport"],
    "connection_lost": ["exc"],
    "data_received": ["data"],
    "on_message_begin": [],
    "on_header": ["name", "value"],
    "on_headers_complete": [],
    "on_body": ["body"],
    "on_message_complete": [],
    "on_response_complete": [],
    "send_400_response": ["msg"],
}
# Read or set on the protocol and on the cycle of a request.
PROTOCOL_ATTRIBUTES = [
    "connections",
    "cycle",
    "headers",
    "loop",
    "parser",
    "pipeline",
    "scope",
    "transport",
    "url",
]
CYCLE_ATTRIBUTES = ["disconnected", "message_event", "response_complete", "response_started"]


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_overridden_methods_have_the_same_parameters(name: str) -> None:
    method = getattr(HttpToolsProtocol, name, None)
    assert method is not None, f"HttpToolsProtocol.{name} is gone; {ADVICE}"
    parameters = list(inspect.signature(method).parameters)[1:]
    assert parameters == OVERRIDDEN[name], f"HttpToolsProtocol.{name}: {ADVICE}"


@pytest.mark.parametrize("name", PROTOCOL_ATTRIBUTES)
def test_the_protocol_has_the_attributes_that_are_used(name: str) -> None:
    source = inspect.getsource(HttpToolsProtocol)
    assert f"self.{name}" in source, f"HttpToolsProtocol.{name} is gone; {ADVICE}"


@pytest.mark.parametrize("name", CYCLE_ATTRIBUTES)
def test_the_cycle_has_the_attributes_that_are_used(name: str) -> None:
    source = inspect.getsource(RequestResponseCycle)
    assert f"self.{name}" in source, f"RequestResponseCycle.{name} is gone; {ADVICE}"


def test_malformed_requests_end_in_send_400_response() -> None:
    """The rejection of a header is raised in a parser callback and answered there."""
    source = inspect.getsource(HttpToolsProtocol.data_received)
    assert "send_400_response" in source, ADVICE
    assert "HttpParserError" in source, ADVICE


def test_the_parser_is_made_and_dropped_where_it_is_replaced() -> None:
    """`taco_common/no_upgrade_protocol.py` replaces it, with the same leniency."""
    source = inspect.getsource(HttpToolsProtocol.__init__)
    assert "self.parser = httptools.HttpRequestParser(self)" in source, ADVICE
    assert "self.parser.set_dangerous_leniencies(lenient_data_after_close=True)" in source, ADVICE
    assert "self.parser = None" in inspect.getsource(HttpToolsProtocol.connection_lost), ADVICE
    assert "HttpParserUpgrade" in inspect.getsource(HttpToolsProtocol.data_received), ADVICE


@pytest.mark.parametrize("status", [400, 408, 413, 431, 501, 503])
def test_status_lines_are_bytes_with_a_line_end(status: int) -> None:
    assert STATUS_LINE[status].startswith(b"HTTP/1.1 %d " % status), ADVICE
    assert STATUS_LINE[status].endswith(b"\r\n"), ADVICE


def test_the_server_has_the_hooks_that_are_used() -> None:
    for name, parameters in {"capture_signals": [], "on_tick": ["counter"]}.items():
        method = getattr(uvicorn.Server, name, None)
        assert method is not None, f"uvicorn.Server.{name} is gone; {ADVICE}"
        assert list(inspect.signature(method).parameters)[1:] == parameters, ADVICE
    server = uvicorn.Server(uvicorn.Config(_no_app))
    assert server.should_exit is False, ADVICE


def test_pyproject_bounds_every_requirement_of_uvicorn() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = extras["optional-dependencies"]
    found = [Requirement(text) for texts in extras.values() for text in texts]
    bounds = [r.specifier for r in found if r.name == "uvicorn"]
    assert len(bounds) >= 3
    for bound in bounds:
        assert any(part.operator == "<" for part in bound), "uvicorn needs an upper bound"
        assert bound.contains(uvicorn.__version__)


def test_subclasses_override_nothing_else_of_the_protocol() -> None:
    """A new override belongs in this file's list."""
    inherited = {name for name in dir(HttpToolsProtocol) if not name.startswith("__")}
    subclasses = (NoUpgradeProtocol, BoundedHttpProtocol, LicenseHttpProtocol, RoleHttpProtocol)
    for subclass in subclasses:
        overridden = inherited & subclass.__dict__.keys()
        assert overridden <= OVERRIDDEN.keys(), f"{subclass.__module__} overrides {overridden}"


async def _no_app(scope: Any, receive: Any, send: Any) -> None:
    raise NotImplementedError
