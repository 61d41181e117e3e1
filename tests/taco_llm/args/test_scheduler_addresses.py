"""Scheduler addresses: --advertise, and gateways of several schedulers."""

import pytest

from taco_llm.args.gateway_args import GatewayArgs
from taco_llm.cli.main import main
from taco_llm.cli.scheduler import advertised
from taco_proto.config import ModelConfig
from taco_proto.errors import ConfigurationError


@pytest.mark.parametrize("listen", ["10.0.0.5:7100", "scheduler-0:7100", "[fd00::1]:7100"])
def test_a_reachable_listen_address_is_advertised_unchanged(listen: str) -> None:
    assert advertised(listen, None, has_redis=True) == listen
    assert advertised(listen, None, has_redis=False) is None


@pytest.mark.parametrize(
    "listen",
    ["0.0.0.0:7100", ":7100", "[::]:7100", "127.0.0.1:7100", "localhost:7100", "unix:/run/s.sock"],
)
def test_an_unreachable_listen_address_needs_advertise(listen: str) -> None:
    with pytest.raises(ConfigurationError, match=f"cannot reach {listen[:4].replace('[', '.')}"):
        advertised(listen, None, has_redis=True)
    assert advertised(listen, "10.0.0.5:7100", has_redis=True) == "10.0.0.5:7100"


@pytest.mark.parametrize("address", ["unix:/run/s.sock", "127.0.0.1:7100", "host.example:65535"])
def test_valid_advertised_addresses(address: str) -> None:
    assert advertised("0.0.0.0:7100", address, has_redis=True) == address


@pytest.mark.parametrize(
    "address",
    ["", "host", "host:", ":7100", "0.0.0.0:7100", "host:0", "host:65536", "unix:", "h:٣"],
)
def test_invalid_advertised_addresses_are_rejected(address: str) -> None:
    with pytest.raises(
        ConfigurationError,
        match="--advertise must be host:port with a host that gateways can reach",
    ):
        advertised("0.0.0.0:7100", address, has_redis=True)


def test_advertise_needs_redis() -> None:
    with pytest.raises(ConfigurationError, match="--advertise needs --redis-url"):
        advertised("0.0.0.0:7100", "10.0.0.5:7100", has_redis=False)


def test_an_unreachable_listen_address_is_a_one_line_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["scheduler", "--redis-url", "redis://127.0.0.1:1"]) == 2
    error = capsys.readouterr().err
    assert "cannot reach 0.0.0.0:7100: with --redis-url also give --advertise" in error
    assert "Traceback" not in error


def test_a_gateway_needs_an_address_or_redis(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gateway", "demo"]) == 2
    assert "--scheduler is needed, the address of the scheduler, or --redis-url" in (
        capsys.readouterr().err
    )


def test_scheduler_addresses_are_separated_by_commas() -> None:
    model = ModelConfig(model="m")
    config = GatewayArgs().gateway_config(model, "a:1,unix:/b")
    assert config.schedulers == ("a:1", "unix:/b")
    assert GatewayArgs().gateway_config(model, "").schedulers == ()
