"""License flags: which workers need a license, from which server, under which id."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.license_server import LicenseServer
from support.licenses import Clock, gpu_names, make_license, signed
from support.patience import wait_until
from taco_gateway.engine.engine_client import EngineError
from taco_llm import LLM, EngineArgs, SamplingParams
from taco_llm.cli.main import main
from taco_llm.supervisor.child_message import decode_config, encode_config
from taco_proto.config import LicenseConfig, WorkerConfig
from taco_proto.errors import ConfigurationError
from taco_proto.licenses import LICENSE_INVALID

HOST = socket.gethostname()
NAMED = {"TACO_LS_ADDR": "10.0.0.7:10080"}
ENGINE: dict[str, Any] = {"num_gpu_blocks_override": 64, "num_threads": 1, "max_num_seqs": 8}
ONE, TWO = gpu_names(2)


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        ({}, {}, LicenseConfig(host_id=HOST, only_if_found=True)),
        ({}, {"TACO_LS_ADDR": ""}, LicenseConfig(host_id=HOST, only_if_found=True)),
        ({}, NAMED, LicenseConfig(host_id=HOST, address="10.0.0.7:10080")),
        ({"license": "required"}, {}, LicenseConfig(host_id=HOST)),
        ({"license": "off"}, NAMED, None),
        ({"license": "off"}, {"TACO_LS_ADDR": "ftp://nonsense"}, None),
        ({}, {"TACO_LICENSE_ID": "h-1"}, LicenseConfig(host_id="h-1", only_if_found=True)),
        (
            {"license_id": "h-2", "license": "required"},
            {"TACO_LICENSE_ID": "h-1"},
            LicenseConfig(host_id="h-2"),
        ),
        ({"license_index": 1}, NAMED, LicenseConfig(host_id=f"{HOST}-1", address="10.0.0.7:10080")),
    ],
)
def test_the_id_that_a_worker_asks_with(
    arguments: dict[str, Any], environment: dict[str, str], expected: LicenseConfig | None
) -> None:
    assert EngineArgs(model="demo", **arguments).license_config(environment) == expected


def test_serve_passes_the_license_arguments_to_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TACO_LS_ADDR", "http://10.0.0.7:10080")
    config = EngineArgs(model="demo", license_id="h-1").worker_config()
    assert config.license == LicenseConfig(host_id="h-1", address="http://10.0.0.7:10080")
    sent = json.loads(encode_config(config, 1))["config"]
    assert decode_config(WorkerConfig, sent) == config


def test_a_negative_index_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="license_index must be at least 0, got -1"):
        EngineArgs(model="demo", license_index=-1).license_config({})


@pytest.mark.parametrize("command", ["worker --scheduler 127.0.0.1:1 demo", "serve demo"])
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "TACO_LS_ADDR",
            "ftp://10.0.0.7",
            "TACO_LS_ADDR must be an address such as http://10.0.0.7:10080",
        ),
        ("TACO_LICENSE_ID", "two words", "--license-id must begin with a letter or digit"),
    ],
)
def test_invalid_license_arguments_are_a_one_line_error(
    command: str,
    name: str,
    value: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(name, value)
    assert main(command.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


# ---------------------------------------------------------------------- offline


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LicenseServer]:
    """For all workers of this process, which run on the second host of its license."""
    monkeypatch.setattr("taco_license.server.app.HEARTBEAT_SECONDS", 0.05)
    with LicenseServer(tmp_path / "licenses", Clock()) as server:
        monkeypatch.setenv("TACO_LS_ADDR", server.address)
        monkeypatch.setenv("TACO_LICENSE_ID", TWO)
        yield server


def test_llm_without_a_license_raises_a_clear_error(server: LicenseServer) -> None:
    server.replace(signed(make_license(1)))
    with pytest.raises(ConfigurationError, match="there is no license: not_licensed: "):
        LLM("demo", **ENGINE)


def test_llm_rejects_requests_after_the_license_is_lost(server: LicenseServer) -> None:
    server.replace(signed(make_license(2)))
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    with LLM("demo", **ENGINE) as llm:
        [output] = llm.generate("x", params, use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 4
        server.replace(signed(make_license(1, serial=2)))

        refusals: list[EngineError] = []

        def is_refused() -> bool:
            try:
                llm.generate("x", params, use_tqdm=False)
            except EngineError as error:
                refusals.append(error)
            return bool(refusals)

        wait_until(is_refused, "the refusal of a request")
        assert (refusals[0].code, refusals[0].reason) == (503, LICENSE_INVALID)
    assert server.service.ledger.num_seats == 0
