"""The gateway's arguments: where it listens, whom it lets in, how it answers."""

import math
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from taco_llm.args.admin_args import check_admin_listen
from taco_llm.args.flags import GATEWAY, flag, strings
from taco_proto.config import GatewayConfig, ModelConfig, RedisConfig
from taco_proto.errors import ConfigurationError

API_KEY_VARIABLE = "TACO_API_KEY"
VLLM_API_KEY_VARIABLE = "VLLM_API_KEY"  # holds one key, commas included

_GATEWAY = (GATEWAY,)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayArgs:
    """Arguments of the HTTP and gRPC front end.

    Raises:
        ConfigurationError: a value is out of range or contradicts another.
    """

    host: str = flag(
        "Address to listen on. 0.0.0.0 is every network of this machine, 127.0.0.1 only the "
        "machine itself.",
        _GATEWAY,
        default="0.0.0.0",
    )
    port: int = flag("TCP port of the HTTP API.", _GATEWAY, default=8000, parse=int)
    uds: str | None = flag(
        "Unix socket to serve HTTP on instead of host and port.",
        _GATEWAY,
        default=None,
        metavar="PATH",
    )
    grpc_port: int | None = flag(
        "TCP port of the Inference gRPC service for internal callers. Without it the service is "
        "off.",
        _GATEWAY,
        default=None,
        parse=int,
        metavar="PORT",
    )
    admin_listen: str | None = flag(
        "Address of the admin listener, host:port or unix:/path. It serves /livez, /readyz, "
        "/drain and /metrics, and asks for no key. By default taco_llm serve makes a private Unix "
        "socket.",
        _GATEWAY,
        default=None,
        metavar="ADDRESS",
    )
    admin_port: int | None = flag(
        "TCP port of the admin listener, on the address of --host. /metrics is then served only "
        "there.",
        _GATEWAY,
        default=None,
        parse=int,
        metavar="PORT",
    )
    min_ready_workers: int = flag(
        "Report ready on /readyz only while at least this many workers are attached.",
        _GATEWAY,
        default=1,
        parse=int,
        metavar="WORKERS",
    )
    queue_timeout: float = flag(
        "Maximum seconds that a request waits in the queue before it fails with status 504.",
        _GATEWAY,
        default=600.0,
        parse=float,
        metavar="SECONDS",
    )
    drain_timeout: float = flag(
        "Seconds that running requests get to finish after SIGTERM.",
        _GATEWAY,
        default=30.0,
        parse=float,
        metavar="SECONDS",
    )
    api_key: tuple[str, ...] = flag(
        "An API key that clients may present as a bearer token. Repeat the flag for several keys. "
        f"The environment variables {API_KEY_VARIABLE} (keys separated by commas) and "
        f"{VLLM_API_KEY_VARIABLE} (one key) keep keys out of the process list.",
        _GATEWAY,
        default=(),
        several="append",
        metavar="KEY",
    )
    api_key_file: str | None = flag(
        "JSON or YAML file with keys, and for each its owner's name, weight, limits and models. It "
        "is read again on SIGHUP.",
        _GATEWAY,
        default=None,
        metavar="FILE",
    )
    redis_keys: bool = flag(
        "Read API keys from Redis, shared by all gateways (see taco_llm keys). While Redis holds "
        "no key, every request is rejected.",
        _GATEWAY,
        default=False,
    )
    share_prefix_cache: bool = flag(
        "Share cached prefixes between requests of different API keys. Use it only for keys that "
        "trust each other: the time to the first token then shows whether another key has sent "
        "the same prefix.",
        _GATEWAY,
        default=False,
    )
    chat_template: str | None = flag(
        "File with the Jinja chat template, or the template itself. Without it the one in the "
        "checkpoint is used.",
        _GATEWAY,
        default=None,
        metavar="TEMPLATE",
    )
    response_role: str = flag(
        "Role of the messages in chat answers.", _GATEWAY, default="assistant", metavar="ROLE"
    )
    return_tokens_as_token_ids: bool = flag(
        "Show tokens in log probabilities as token_id:NUMBER, which is useful for tokens that are "
        "not valid UTF-8 by themselves.",
        _GATEWAY,
        default=False,
    )
    allowed_origins: tuple[str, ...] = flag(
        "Origins that browsers may call from (CORS), one or a JSON list.",
        _GATEWAY,
        default=("*",),
        parse=strings,
        metavar="ORIGINS",
    )
    allowed_methods: tuple[str, ...] = flag(
        "HTTP methods that browsers may use from other origins, one or a JSON list.",
        _GATEWAY,
        default=("*",),
        parse=strings,
        metavar="METHODS",
    )
    allowed_headers: tuple[str, ...] = flag(
        "HTTP headers that browsers may send from other origins, one or a JSON list.",
        _GATEWAY,
        default=("*",),
        parse=strings,
        metavar="HEADERS",
    )
    allow_credentials: bool = flag(
        "Allow browsers to send cookies and credentials from other origins.",
        _GATEWAY,
        default=False,
    )
    root_path: str = flag(
        "Path under which a reverse proxy serves this API.", _GATEWAY, default="", metavar="PATH"
    )
    middleware: tuple[str, ...] = flag(
        "Import path of an ASGI middleware to add to the app, a class or a function. Repeat the "
        "flag for several.",
        _GATEWAY,
        default=(),
        several="append",
        metavar="IMPORT_PATH",
    )
    ssl_keyfile: str | None = flag(
        "File with the private key for TLS.", _GATEWAY, default=None, metavar="FILE"
    )
    ssl_certfile: str | None = flag(
        "File with the certificate for TLS.", _GATEWAY, default=None, metavar="FILE"
    )
    ssl_ca_certs: str | None = flag(
        "File with the authorities that client certificates are checked against.",
        _GATEWAY,
        default=None,
        metavar="FILE",
    )
    ssl_cert_reqs: int = flag(
        "Whether clients need a certificate: 0 no, 1 optional (checked if there is one), 2 "
        "required.",
        _GATEWAY,
        default=0,
        parse=int,
        choices=(0, 1, 2),
    )
    max_connections: int = flag(
        "Maximum HTTP connections open at a time, in each gateway process. A further connection "
        "gets a 503 and is closed. A low limit on descriptors (ulimit -n) reduces it: raise both "
        "together.",
        _GATEWAY,
        default=8192,
        parse=int,
        metavar="NUMBER",
    )
    uvicorn_log_level: str = flag(
        "Log level of uvicorn, the HTTP server. info adds its lines about start and stop.",
        _GATEWAY,
        default="warning",
        choices=("critical", "error", "warning", "info", "debug", "trace"),
    )
    enable_log_requests: bool = flag(
        "Log the prompt and the parameters of each request when it starts. Without it prompts are "
        "never logged. One line for each finished request is logged in any case.",
        _GATEWAY,
        default=False,
    )
    max_log_len: int | None = flag(
        "Maximum characters, or token ids, of a prompt that --enable-log-requests logs. Default: "
        "no limit.",
        _GATEWAY,
        default=None,
        parse=int,
        metavar="LENGTH",
    )

    def __post_init__(self) -> None:
        for name in (
            "api_key",
            "middleware",
            "allowed_origins",
            "allowed_methods",
            "allowed_headers",
        ):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        self._check_ports()
        for name in ("queue_timeout", "drain_timeout"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigurationError(f"{name} must be above 0, got {getattr(self, name)}")
        if self.max_connections < 1:
            raise ConfigurationError(
                f"max_connections must be at least 1, got {self.max_connections}"
            )
        if self.min_ready_workers < 1:
            raise ConfigurationError(
                f"min_ready_workers must be at least 1, got {self.min_ready_workers}"
            )
        if self.max_log_len is not None and self.max_log_len < 0:
            raise ConfigurationError(f"max_log_len must be at least 0, got {self.max_log_len}")
        if not all(self.api_key):
            raise ConfigurationError("api_key is empty")
        self._check_tls()

    def _check_ports(self) -> None:
        names = ("grpc_port", "admin_port") if self.uds else ("port", "grpc_port", "admin_port")
        taken: dict[int, str] = {}
        for name in names:
            port = getattr(self, name)
            if port is None:
                continue
            if not 0 < port < 65536:
                raise ConfigurationError(f"{name} must be between 1 and 65535, got {port}")
            if port in taken:
                raise ConfigurationError(f"{taken[port]} and {name} are both {port}")
            taken[port] = name
        check_admin_listen(self.admin_listen, self.admin_port)

    def _check_tls(self) -> None:
        for name in ("ssl_keyfile", "ssl_certfile", "ssl_ca_certs"):
            path = getattr(self, name)
            if path is not None and not Path(path).is_file():
                raise ConfigurationError(f"{name} {path!r} does not exist")
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ConfigurationError("ssl_keyfile needs ssl_certfile")
        if self.ssl_cert_reqs != ssl.CERT_NONE and self.ssl_ca_certs is None:
            raise ConfigurationError(
                "ssl_cert_reqs needs ssl_ca_certs to check certificates against"
            )

    def gateway_config(
        self,
        model: ModelConfig,
        scheduler: str,
        *,
        admin_listen: str | None = None,
        redis: RedisConfig | None = None,
    ) -> GatewayConfig:
        """The configuration; API keys come from the environment where no flag gives one, and
        `admin_listen` holds where no flag says anything of it.

        Raises:
            ConfigurationError: keys are to be found in two places, or in a Redis that is not named.
        """
        if self.admin_port is not None:
            host = f"[{self.host}]" if ":" in self.host else self.host
            admin_listen = f"{host}:{self.admin_port}"
        keys = self.api_key or keys_of(os.environ)
        if self.redis_keys and redis is None:
            raise ConfigurationError("redis_keys needs redis_url")
        if self.redis_keys and (keys or self.api_key_file is not None):
            raise ConfigurationError(
                f"redis_keys and api_key, api_key_file, {API_KEY_VARIABLE} or "
                f"{VLLM_API_KEY_VARIABLE} contradict: "
                "taco_llm keys import takes the keys of a file to Redis"
            )
        return GatewayConfig(
            model=model,
            scheduler=scheduler,
            host=self.host,
            port=self.port,
            uds=self.uds,
            grpc_listen=None if self.grpc_port is None else f"{self.host}:{self.grpc_port}",
            admin_listen=self.admin_listen or admin_listen,
            min_ready_workers=self.min_ready_workers,
            queue_timeout=self.queue_timeout,
            drain_timeout=self.drain_timeout,
            max_connections=self.max_connections,
            api_keys=keys,
            api_key_file=self.api_key_file and str(Path(self.api_key_file).absolute()),
            share_prefix_cache=self.share_prefix_cache,
            chat_template=self.chat_template,
            response_role=self.response_role,
            return_tokens_as_token_ids=self.return_tokens_as_token_ids,
            allowed_origins=self.allowed_origins,
            allowed_methods=self.allowed_methods,
            allowed_headers=self.allowed_headers,
            allow_credentials=self.allow_credentials,
            root_path=self.root_path,
            uvicorn_log_level=self.uvicorn_log_level,
            ssl_keyfile=self.ssl_keyfile,
            ssl_certfile=self.ssl_certfile,
            ssl_ca_certs=self.ssl_ca_certs,
            ssl_cert_reqs=self.ssl_cert_reqs,
            log_requests=self.enable_log_requests,
            max_log_len=self.max_log_len,
            middleware=self.middleware,
            redis=redis,
            redis_keys=self.redis_keys,
        )


def keys_of(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The API keys that environment variables hold; vLLM's counts where ours holds none."""
    keys = tuple(key for key in environment.get(API_KEY_VARIABLE, "").split(",") if key)
    other = environment.get(VLLM_API_KEY_VARIABLE, "")
    return keys or ((other,) if other else ())
