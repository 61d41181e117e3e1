"""License server processes: curl commands of the documentation, SIGKILL, a full disk."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives import serialization

from support.licenses import ISSUER, gpu_names
from support.patience import PATIENCE_SECONDS, wait_until
from support.redis_server import RedisServer
from support.serving import free_port
from taco_license.document.issue import issue
from taco_license.document.license_file import Gpu

pytestmark = pytest.mark.process

PORT = 10080  # of the documents, and the default
FILE = "license-taco_1234-leolingli-20240906104354.dat"
# The commands of TACO's documents, except for `kubectl`, which shows the address.
CURL = f"""
curl $LICENSE_SERVER_IP:10080
LICENSE_FILE_NAME={FILE}
curl -X POST -F "file=@$LICENSE_FILE_NAME" http://${{LICENSE_SERVER_IP}}:10080/ls
curl $LICENSE_SERVER_IP:10080/ls/view
"""
ALMOST_ALL = 0.9  # of an upload, when the server is killed


def document(serial: int, gpus: int) -> bytes:
    return issue(
        [Gpu(name, "Tesla T4") for name in gpu_names(gpus)],
        ISSUER,
        app_id="1234",
        customer="leolingli",
        expires="1d",
        access_limit=0,
        now=datetime.now(UTC),
        serial=serial,
    )


def address() -> str:
    """An address of this machine on which the documented port is free."""
    high, low = divmod(free_port(), 256)
    return f"127.{high}.{low}.1"


def count_gpus(host: str) -> int:
    return httpx.get(f"http://{host}:{PORT}/ls/view").text.count("- uuid: ")


def upload(host: str, data: bytes) -> httpx.Response:
    return httpx.post(f"http://{host}:{PORT}/ls", files={"file": data}, timeout=PATIENCE_SECONDS)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    public = ISSUER.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (tmp_path / "license.pub").write_bytes(public)
    return tmp_path


@contextmanager
def running(
    directory: Path, host: str, *flags: str, prefix: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    with (directory / "log").open("ab") as log:
        process = subprocess.Popen(
            [
                *(*prefix, sys.executable, "-m", "taco_llm.cli.main", "license", "serve"),
                *("--host", host, "--public-key", "license.pub", *flags),
            ],
            cwd=directory,
            stderr=log,
        )

    def answers() -> bool:
        assert process.poll() is None, (directory / "log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex((host, PORT)) == 0

    try:
        wait_until(answers, "a license server")
        yield process
    finally:
        process.kill()
        process.wait()


def run_curl(directory: Path, host: str) -> str:
    done = subprocess.run(
        ["bash", "-ec", CURL],
        cwd=directory,
        env=os.environ | {"LICENSE_SERVER_IP": host},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    return done.stdout


def check_view(output: str) -> None:
    lines = output.splitlines()
    assert lines[:2] == ["taco license server", "license file sucessfully uploaded"]
    assert lines[2:6] == ['appid: "1234"', "customer: leolingli", "accesslimit: 0", "gpuinfos:"]
    assert lines[6:8] == [f"- uuid: {gpu_names(1)[0]}", "  brand: Tesla T4"]
    assert lines[8].startswith("  issuedtime: 20")
    assert lines[9].startswith("  expiredtime: 20")


def test_the_commands_of_the_documents_and_a_server_killed_in_mid_upload(directory: Path) -> None:
    host = address()
    (directory / FILE).write_bytes(document(1, 3))
    newer = document(2, 10_000)
    with running(directory, host) as process, socket.socket() as connection:
        check_view(run_curl(directory, host))
        connection.connect((host, PORT))
        form = httpx.Request("POST", f"http://{host}/ls", files={"file": newer})
        head = "".join(f"{name}: {value}\r\n" for name, value in form.headers.items())
        connection.sendall(f"POST /ls HTTP/1.1\r\n{head}\r\n".encode())
        body = form.read()
        connection.sendall(body[: int(ALMOST_ALL * len(body))])
        process.kill()
    with running(directory, host):
        assert count_gpus(host) == 3
        assert upload(host, newer).status_code == 200
        assert count_gpus(host) == 10_000


def test_the_commands_of_the_documents_to_two_servers(
    directory: Path, redis_server: RedisServer
) -> None:
    """Two servers share a license; one continues after the other is killed."""
    first, second = address(), address()
    (directory / FILE).write_bytes(document(1, 3))
    redis = ("--redis-url", redis_server.url)
    with running(directory, second, *redis):
        with running(directory, first, *redis):
            check_view(run_curl(directory, first))
            wait_until(lambda: count_gpus(second) == 3, "the license at the other server")
        lease = {"gpus": gpu_names(3), "instance": "a", "started": 1}
        assert httpx.post(f"http://{second}:{PORT}/ls/lease", json=lease).status_code == 200


def test_a_full_disk(directory: Path) -> None:
    """A server with a small, separate file system in its own mount namespace."""
    host = address()
    (directory / "data").mkdir()
    mount = 'mount -t tmpfs -o size=300k none data && exec "$@"'
    prefix = ("unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh")
    small = document(1, 3)
    with running(directory, host, "--data-dir", "data", prefix=prefix):
        assert upload(host, small).status_code == 200
        refused = upload(host, document(2, 10_000))
        assert (refused.status_code, "the current license stays in use" in refused.text) == (
            507,
            True,
        )
        assert count_gpus(host) == 3
        lease = {"gpus": gpu_names(3), "instance": "a", "started": 1}
        assert httpx.post(f"http://{host}:{PORT}/ls/lease", json=lease).status_code == 200
        assert upload(host, document(3, 5)).status_code == 200
    assert not list((directory / "data").iterdir())
