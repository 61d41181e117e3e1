"""`taco_llm license`: keys of an issuer, licenses, and the license server."""

import signal
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import httpx
import pytest

from support.certificates import make_certificates
from support.patience import PATIENCE_SECONDS, wait_until
from support.serving import free_port
from taco_common.tls import Role
from taco_license.document.keys import read_public_keys
from taco_license.document.license_file import License, verify
from taco_llm.cli.main import main

pytestmark = pytest.mark.process

REQUEST = "GPU 0: Tesla T4 (UUID: GPU-4c34f7a2-cd33-469b-019f-9af0bb76a073)\n"
WHO = ("--request", "request.txt", "--appid", "1234", "--customer", "leo lingli")


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with an issuer's keys and a request."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "request.txt").write_text(REQUEST)
    assert main(["license", "keygen"]) == 0
    return tmp_path


def issue(*flags: str, output: str = "license.dat") -> License:
    assert main(["license", "issue", *WHO, "-o", output, *flags]) == 0
    return verify(Path(output).read_bytes(), read_public_keys(["license.pub"]))


def test_issue(directory: Path) -> None:
    license_ = issue("--expires", "30d", "--access-limit", "7")
    assert (license_.app_id, license_.customer, license_.access_limit) == ("1234", "leo lingli", 7)
    assert license_.expires - license_.issued == pytest.approx(timedelta(30).total_seconds())
    assert [gpu.brand for gpu in license_.gpus] == ["Tesla T4"]


def test_serials_increase_or_can_be_given(directory: Path) -> None:
    before = int(datetime.now().timestamp() * 1000)
    assert issue("--expires", "1d").serial >= before
    assert issue("--expires", "1d", "--serial", "12").serial == 12


def test_an_expiry_day_is_the_last_valid_day(directory: Path) -> None:
    license_ = issue("--expires", "2999-12-31")
    assert datetime.fromisoformat(license_.expired_time).replace(tzinfo=None) == datetime(
        3000, 1, 1
    )
    assert issue("--expires", "2999-12-31T18:00:00+08:00").expired_time.endswith("18:00:00+08:00")


def test_the_name_of_a_license(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["license", "issue", *WHO, "--expires", "1d"]) == 0
    (path,) = directory.glob("license-taco_1234-leo_lingli-*.dat")
    assert capsys.readouterr().out.endswith(f"{path.name}: 1 GPUs\n")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--expires", "2020-01-01"), "later than issuedtime"),
        (("--expires", "2030-02-30"), "is not a valid day"),
        (("--expires", "soon"), "expiredtime must be a time"),
        ((), "--expires is needed"),
        (("--expires", "1d", "--access-limit", "-1"), "accesslimit must be"),
        (("--expires", "1d", "--request", "absent"), "cannot read absent: No such file"),
        (("--expires", "1d", "--private-key", "license.pub"), "no Ed25519 private key"),
        (("--expires", "1d", "--customer", ""), "customer must be"),
        (("--expires", "1d", "-o", "absent/license.dat"), "cannot write absent/license.dat"),
    ],
)
def test_an_invalid_license_request_is_a_one_line_error(
    directory: Path, flags: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["license", "issue", *WHO, *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(directory.glob("*.dat"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--public-key", "absent.pub"), "cannot read absent.pub"),
        (("--public-key", "license.key"), "no Ed25519 public key"),
        (("--admin-token-file", "absent"), "cannot read absent"),
        (("--admin-token-file", "empty"), "contains no token"),
        (("--host", "192.0.2.1"), "cannot listen on 192.0.2.1"),
        (("--data-dir", "empty/data", "--port", "0"), "cannot write in empty/data"),
        (("--data-dir", "data", "--redis-url", "redis://r"), "contradict each other"),
        (("--redis-url", "http://r"), "--redis-url must begin with redis://"),
        (("--redis-url", "redis://r?no=1", "--port", "0"), "redis://r has an unknown option"),
        (
            ("--redis-url", "redis://r", "--redis-password-file", "empty", "--port", "0"),
            "no password",
        ),
        (("--redis-password-file", "empty"), "--redis-password-file needs --redis-url"),
    ],
)
def test_a_failed_server_start_is_a_one_line_error(
    directory: Path, flags: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "empty").touch()
    assert main(["license", "serve", *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_server_of_an_issuer(directory: Path) -> None:
    issue("--expires", "1d")
    (directory / "token").write_text("secret\n")
    port = free_port()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "taco_llm.cli.main", "license", "serve"),
            *("--host", "127.0.0.1", "--port", str(port), "--data-dir", "data"),
            *("--public-key", "license.pub", "--admin-token-file", "token"),
        ],
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: _answers(url), "the license server")
        files = {"file": Path("license.dat").read_bytes()}
        assert httpx.post(f"{url}/ls", files=files).status_code == 401
        headers = {"authorization": "Bearer secret"}
        assert httpx.post(f"{url}/ls", files=files, headers=headers).status_code == 200
        assert "brand: Tesla T4\n" in httpx.get(f"{url}/ls/view").text
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("host", "has_tls", "warns"),
    [("0.0.0.0", False, True), ("0.0.0.0", True, False), ("127.0.0.1", False, False)],
)
def test_a_reachable_server_without_tls_is_warned_about(
    directory: Path, host: str, has_tls: bool, warns: bool
) -> None:
    flags = ["--host", host, "--port", str(free_port()), "--data-dir", "data"]
    if has_tls:
        tls = make_certificates(directory / "tls", Role.LICENSE_SERVER)
        for name, file in (("ca", "ca.crt"), ("cert", "license-server.crt")):
            flags += [f"--tls-{name}-file", str(tls / file)]
        flags += ["--tls-key-file", str(tls / "license-server.key")]
    process = subprocess.Popen(
        [sys.executable, "-m", "taco_llm.cli.main", "license", "serve", *flags],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert any("listening on" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        process.wait(PATIENCE_SECONDS)
    finally:
        process.kill()
        process.wait()
    assert ("anyone who reaches this port can take seats" in rest) is warns


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
            return bool(answer.read() == b"taco license server\n")
    except OSError:
        return False
