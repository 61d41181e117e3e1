"""The files of mutual TLS: good ones, and what is said of others."""

import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from support.certificates import EXPIRED, LIFETIME, make_certificates, tls_config
from taco_common.metrics import exposition, process_registry
from taco_common.tls import Role, check_files
from taco_llm.certificates import issue
from taco_proto.errors import ConfigurationError

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("tls") / "one", Role.WORKER, Role.GATEWAY)


def refusal(directory: Path, role: Role = Role.WORKER, **changes: object) -> str:
    config = replace(tls_config(directory, Role.WORKER), **changes)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError) as raised:
        check_files(config, role)
    message = str(raised.value)
    assert "\n" not in message
    return message


def test_a_certificate_proves_its_own_role_alone(directory: Path) -> None:
    check_files(tls_config(directory, Role.WORKER), Role.WORKER)
    for role in set(Role) - {Role.WORKER}:
        assert f"worker.crt does not prove the role {role}: " in refusal(directory, role)


def test_files_that_cannot_be_used(directory: Path, tmp_path: Path) -> None:
    key, certificate = str(directory / "worker.key"), str(directory / "worker.crt")
    assert refusal(directory, cert_file="/no/such.crt") == (
        "cannot read /no/such.crt: No such file or directory"
    )
    assert refusal(directory, key_file=str(directory)).endswith("Is a directory")
    assert refusal(directory, ca_file=key) == f"{key} holds no certificate in PEM"
    other_key = str(directory / "gateway.key")
    assert refusal(directory, key_file=other_key) == f"{other_key} is not the key of {certificate}"
    assert "must hold a certificate in PEM" in refusal(directory, cert_file=key)
    locked = str(tmp_path / "locked.key")
    command = ["openssl", "pkey", "-in", key, "-aes128", "-passout", "pass:secret", "-out", locked]
    subprocess.run(command, check=True)
    assert "without a password" in refusal(directory, key_file=locked)


def test_metrics_follow_the_certificate_in_the_file(tmp_path: Path) -> None:
    files = make_certificates(tmp_path / "one", Role.WORKER)
    registry = process_registry(Role.WORKER, tls_config(files, Role.WORKER))

    def end() -> float:
        page = exposition(registry).decode()
        return float(page.split("\ntaco:certificate_expiry_timestamp_seconds ")[1].split()[0])

    first = end()
    assert 0 < first - time.time() <= LIFETIME.total_seconds()
    issue(files, Role.WORKER, 2 * LIFETIME)
    assert end() > first
    renewed = end()
    (files / "worker.key").write_text("half written")
    issue(files, Role.WORKER, EXPIRED)  # an expired certificate changes nothing
    assert end() == renewed


def test_certificates_that_prove_nothing(directory: Path, tmp_path: Path) -> None:
    other = make_certificates(tmp_path / "other", Role.WORKER)
    assert "unable to get local issuer" in refusal(directory, ca_file=str(other / "ca.crt"))
    issue(other, Role.WORKER, EXPIRED)
    assert "certificate has expired" in refusal(other)
