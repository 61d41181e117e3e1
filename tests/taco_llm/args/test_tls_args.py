"""Flags of mutual TLS: all or none, checked before any process starts."""

import shlex
from pathlib import Path

import pytest

from support.certificates import make_certificates, tls_config
from taco_common.listener import is_private
from taco_common.tls import Role
from taco_llm.args.engine_args import EngineArgs
from taco_llm.args.flags import given
from taco_llm.args.tls_args import PlaintextArgs, TlsArgs
from taco_llm.cli.main import build_parser, main
from taco_llm.cli.options import collect
from taco_llm.supervisor.local_replicas import local_replicas
from taco_llm.supervisor.ray_replicas.cluster import RayCluster
from taco_llm.supervisor.ray_replicas.replicas import RayService, ray_replicas
from taco_proto.config import WorkerConfig
from taco_proto.errors import ConfigurationError

COMMANDS = {
    Role.GATEWAY: ["gateway", "demo", "--scheduler"],
    Role.SCHEDULER: ["scheduler", "--listen"],
    Role.WORKER: ["worker", "demo", "--scheduler"],
    Role.DRAFT_WORKER: ["draft-worker", "--speculative-model", "demo-draft", "--scheduler"],
}
ADDRESS = "127.0.0.1:7100"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("tls") / "one", *Role)


def flags(directory: Path, role: Role) -> list[str]:
    config = tls_config(directory, role)
    return [
        *("--tls-ca-file", config.ca_file),
        *("--tls-cert-file", config.cert_file),
        *("--tls-key-file", config.key_file),
    ]


def test_without_the_flags_there_is_no_tls() -> None:
    assert TlsArgs().tls_config(Role.WORKER, "unix:/any") is None


def test_tls_paths_become_absolute(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(directory)
    relative = TlsArgs(tls_ca_file="ca.crt", tls_cert_file="worker.crt", tls_key_file="worker.key")
    assert relative.tls_config(Role.WORKER, ADDRESS) == tls_config(directory, Role.WORKER)


def test_an_incomplete_set_of_tls_files_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="tls_key_file is missing"):
        TlsArgs(tls_ca_file="ca.crt", tls_cert_file="worker.crt")


@pytest.mark.parametrize("role", COMMANDS)
def test_a_service_needs_a_certificate_with_its_role(
    role: Role, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMANDS[role], ADDRESS, *flags(directory, Role.CLIENT)]) == 2
    assert f"does not prove the role {role}: Hostname mismatch" in capsys.readouterr().err


def test_serve_needs_one_certificate_with_all_roles_on_a_network(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["serve", "demo", "--scheduler-listen", ADDRESS, *flags(directory, Role.WORKER)]
    assert main(command) == 2
    assert "worker.crt does not prove the role gateway" in capsys.readouterr().err


def test_workers_of_serve_get_tls_for_the_license_server(directory: Path) -> None:
    tls = tls_config(directory, Role.WORKER)
    (child,) = local_replicas(EngineArgs(model="demo"), "unix:/scheduler.sock", 1, tls)
    assert isinstance(child._config, WorkerConfig)
    assert child._config.tls == tls


@pytest.mark.slow
def test_ray_services_get_tls_files_as_flags(directory: Path) -> None:
    tls = tls_config(directory, Role.WORKER)
    worker = ray_replicas(
        EngineArgs(model="demo", device="cpu", num_threads=1),
        ADDRESS,
        1,
        RayCluster("10.0.0.1", num_gpus=0),
        tls,
    )[0]
    assert isinstance(worker, RayService)
    namespace = build_parser().parse_args(worker._argv)
    args = TlsArgs(**given(TlsArgs, collect(namespace.parser, namespace)))
    assert args.tls_config(Role.WORKER, ADDRESS) == tls


def test_a_license_server_needs_a_certificate_with_its_role(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["license", "serve", *flags(directory, Role.CLIENT)]) == 2
    assert "does not prove the role license-server" in capsys.readouterr().err


@pytest.mark.parametrize("role", COMMANDS)
def test_a_unix_socket_has_no_tls(
    role: Role, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMANDS[role], "unix:/tmp/a.sock", *flags(directory, role)]) == 2
    assert "unix:/tmp/a.sock is a Unix socket, which has no TLS" in capsys.readouterr().err


@pytest.mark.parametrize(
    "address", ["0.0.0.0:7100", ":7100", "[::]:7100", "10.0.0.5:7100", "host:7100"]
)
@pytest.mark.parametrize(
    "command", [["scheduler", "--listen"], ["serve", "demo", "--scheduler-listen"]]
)
def test_a_scheduler_without_tls_must_not_listen_on_a_reachable_address(
    command: list[str], address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if command[0] == "serve" and address[:3] in ("0.0", ":71", "[::"):
        address = "192.0.2.1:7100"  # it takes only addresses that can be dialled
    assert main([*command, address]) == 2
    error = capsys.readouterr().err
    assert f"must not listen on {address} without TLS" in error
    assert "--allow-insecure" in error


def test_the_default_address_of_a_scheduler_needs_certificates(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["scheduler"]) == 2
    assert "must not listen on 0.0.0.0:7100 without TLS" in capsys.readouterr().err


@pytest.mark.parametrize(
    "address", ["127.0.0.1:7100", "127.8.0.1:1", "localhost:7100", "[::1]:7100", "unix:/s"]
)
def test_a_scheduler_without_tls_may_listen_on_a_private_address(address: str) -> None:
    PlaintextArgs().check(address, None)


def test_allow_insecure_permits_plaintext_with_a_warning(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    PlaintextArgs().check("0.0.0.0:7100", tls_config(directory, Role.SCHEDULER))
    assert not caplog.records
    PlaintextArgs(allow_insecure=True).check("0.0.0.0:7100", None)
    assert "listens on 0.0.0.0:7100 without TLS" in caplog.text


def documented_commands(words: str) -> list[list[str]]:
    """The arguments of each command in the pages that begins with `words`, comments left out."""
    root = Path(__file__).parents[3]
    pages = [root / "README.md", *root.glob("docs/**/*.md"), *root.glob("deploy/**/*.md")]
    lines = [line.strip() for page in pages for line in page.read_text().splitlines()]
    commands = [shlex.split(line, comments=True) for line in lines if line.startswith(words)]
    return [command[1:] for command in commands]


def test_documented_scheduler_commands_start() -> None:
    commands = documented_commands("taco_llm scheduler ")
    assert len(commands) >= 4
    for command in commands:
        values = vars(build_parser().parse_args(command))
        has_tls = all(values.get(name) for name in ("tls_ca_file", "tls_cert_file", "tls_key_file"))
        assert has_tls or values.get("allow_insecure") or is_private(values["listen"]), command
