"""A real `redis-server`, for tests that kill, stop, flush and restart it."""

import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from support.patience import wait_until
from support.serving import free_port
from taco_proto.config import RedisConfig, TlsConfig


class RedisServer:
    """One server on a free port.

    Args:
        directory: for its log, and its data.
        password: clients must give it.
        keeps_data: on disk, over `kill` and `start`.
        tls: clients must have a certificate, and none may come in plaintext; None: all may.
    """

    def __init__(
        self,
        directory: Path,
        password: str | None = None,
        *,
        keeps_data: bool = False,
        tls: TlsConfig | None = None,
    ) -> None:
        self.port = free_port()
        self.password = password
        self._keeps_data = keeps_data
        self._tls = tls
        self._log = directory / f"redis-{self.port}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._client = redis.Redis.from_url(self.url, password=password, socket_timeout=10)

    @property
    def url(self) -> str:
        if self._tls is None:
            return f"redis://127.0.0.1:{self.port}"
        return rediss_url(self.port, self._tls)

    @property
    def config(self) -> RedisConfig:
        user = f":{self.password}@" if self.password else ""
        return RedisConfig(url=f"redis://{user}127.0.0.1:{self.port}")

    def start(self) -> Self:
        """Call it from the main thread: the server dies with the thread."""
        options: dict[str, object] = {"bind": "127.0.0.1", "save": ""}
        if self._tls is None:
            options["port"] = self.port
        else:
            options |= {
                "port": 0,
                "tls-port": self.port,
                "tls-ca-cert-file": self._tls.ca_file,
                "tls-cert-file": self._tls.cert_file,
                "tls-key-file": self._tls.key_file,
            }
        options["appendonly"] = "yes" if self._keeps_data else "no"
        if self.password is not None:
            options["requirepass"] = self.password
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "KILL", "redis-server"),
                    *(text for key, value in options.items() for text in (f"--{key}", str(value))),
                ],
                stdout=log,
                stderr=log,
                cwd=self._log.parent,
                start_new_session=True,
            )
        wait_until(self._answers, "an answer of redis-server")
        return self

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._client.close()
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """It takes connections and bytes, and answers nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def run(self, *command: str | bytes | int | float) -> Any:
        """The reply to a command."""
        return self._client.execute_command(*command)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()
        try:
            return bool(self._client.ping())
        except redis.ConnectionError:
            return False

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()


def rediss_url(port: int, tls: TlsConfig) -> str:
    """For a client with these files."""
    return (
        f"rediss://127.0.0.1:{port}?ssl_ca_certs={tls.ca_file}"
        f"&ssl_certfile={tls.cert_file}&ssl_keyfile={tls.key_file}"
    )
