"""`taco_llm certificates`: a certificate authority, and certificates that prove roles."""

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from support.certificates import tls_config
from taco_common.tls import Role, check_files
from taco_llm.cli.main import main

pytestmark = pytest.mark.process


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "certificates"
    assert main(["certificates", "init", str(directory)]) == 0
    return directory


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    capsys.readouterr()
    assert main(["certificates", *map(str, arguments)]) == 2
    return capsys.readouterr().err


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_every_role_gets_a_certificate_that_proves_it(directory: Path) -> None:
    for role in Role:
        assert main(["certificates", "issue", str(directory), role]) == 0
        check_files(tls_config(directory, role), role)


def test_the_fields_of_a_certificate(directory: Path) -> None:
    hosts = ["--host", "license.example", "--host", "10.0.0.7"]
    arguments = ["certificates", "issue", str(directory), "license-server", "--days", "30"]
    assert main([*arguments, *hosts]) == 0
    issued = certificate(directory / "license-server.crt")
    names = issued.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    dns_names = names.get_values_for_type(x509.DNSName)
    assert dns_names == ["license-server.taco.internal", "license.example"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]
    usages = issued.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usages) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    left = issued.not_valid_after_utc - datetime.now(UTC)
    assert timedelta(29) < left <= timedelta(30)


def test_openssl_accepts_the_certificates(directory: Path) -> None:
    main(["certificates", "issue", str(directory), "worker"])
    command = ["openssl", "verify", "-x509_strict", "-purpose", "sslclient", "-CAfile"]
    subprocess.run([*command, directory / "ca.crt", directory / "worker.crt"], check=True)


def test_private_keys_are_readable_by_their_owner_only(directory: Path) -> None:
    main(["certificates", "issue", str(directory), "worker"])
    modes = {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()}
    assert modes == {"ca.crt": 0o644, "ca.key": 0o600, "worker.crt": 0o644, "worker.key": 0o600}


def test_an_authority_is_made_once(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (directory / "ca.key").read_bytes()
    assert "ca.crt already exists" in error_of(capsys, "init", directory)
    (directory / "ca.crt").unlink()
    assert "ca.key already exists" in error_of(capsys, "init", directory)
    assert (directory / "ca.key").read_bytes() == before


def test_a_certificate_is_renewed(directory: Path) -> None:
    main(["certificates", "issue", str(directory), "worker"])
    first = certificate(directory / "worker.crt").serial_number
    main(["certificates", "issue", str(directory), "worker"])
    assert certificate(directory / "worker.crt").serial_number != first
    check_files(tls_config(directory, Role.WORKER), Role.WORKER)


def test_invalid_certificate_requests_are_errors(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    issue = ("issue", directory, "worker")
    assert "--days must be between 1 and 36500, got 0" in error_of(capsys, *issue, "--days", "0")
    assert "the authority expires earlier" in error_of(capsys, *issue, "--days", "3700")
    for host in ("", "a b", "bücher.example"):
        assert "is not a host name or an IP address" in error_of(capsys, *issue, "--host", host)
    assert not (directory / "worker.crt").exists()
    nowhere = directory / "nowhere"
    assert "taco_llm certificates init" in error_of(capsys, "issue", nowhere, "worker")
    with pytest.raises(SystemExit):
        main(["certificates", "issue", str(directory), "king"])


def test_an_invalid_authority_is_an_error(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["certificates", "issue", str(directory), "worker"])
    (directory / "ca.key").write_bytes((directory / "worker.key").read_bytes())
    assert "is not the key of" in error_of(capsys, "issue", directory, "client")
    (directory / "ca.key").write_text("nothing")
    assert "are not a certificate and its key" in error_of(capsys, "issue", directory, "client")
