"""The gateway's arguments: listeners, API keys, CORS, TLS for clients, request logging."""

import math
import os
import ssl
from dataclasses import dataclass
from pathlib import Path

from taco_llm.api_keys import API_KEY_VARIABLE, VLLM_API_KEY_VARIABLE, keys_of
from taco_llm.args.admin_args import check_admin_listen
from taco_llm.args.flags import GATEWAY, flag, strings
from taco_llm.args.parser_args import ParserArgs
from taco_proto.config import GatewayConfig, ModelConfig, RedisConfig
from taco_proto.errors import ArgumentError

_GATEWAY = (GATEWAY,)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayArgs(ParserArgs):
    """Arguments of the HTTP and gRPC front end.

    Raises:
        ConfigurationError: a value is out of range, or two values contradict each other.
    """

    host: str = flag(
        "Address that the HTTP API listens on. 0.0.0.0 accepts clients from every network; use "
        "127.0.0.1 to accept clients on this machine only.",
        _GATEWAY,
        default="0.0.0.0",
    )
    port: int = flag("TCP port of the HTTP API.", _GATEWAY, default=8000, parse=int)
    uds: str | None = flag(
        "Unix socket that serves the HTTP API instead of --host and --port.",
        _GATEWAY,
        default=None,
        metavar="PATH",
    )
    grpc_port: int | None = flag(
        "TCP port of the Inference gRPC service for internal callers. Without this flag the "
        "service is off.",
        _GATEWAY,
        default=None,
        parse=int,
        metavar="PORT",
    )
    admin_listen: str | None = flag(
        "Address of the admin listener, host:port or unix:/path. It serves /livez, /readyz, "
        "/drain and /metrics without an API key. By default taco_llm serve uses a private Unix "
        "socket.",
        _GATEWAY,
        default=None,
        metavar="ADDRESS",
    )
    admin_port: int | None = flag(
        "TCP port of the admin listener on the address of --host. Set it to serve /metrics on "
        "this port only and not on the public port.",
        _GATEWAY,
        default=None,
        parse=int,
        metavar="PORT",
    )
    min_ready_workers: int = flag(
        "Report ready on /readyz only while at least this many workers are attached. Raise it if "
        "fewer workers cannot carry the load.",
        _GATEWAY,
        default=1,
        parse=int,
        metavar="WORKERS",
    )
    queue_timeout: float = flag(
        "Maximum seconds a request waits in the queue before it fails with status 504.",
        _GATEWAY,
        default=600.0,
        parse=float,
        metavar="SECONDS",
    )
    drain_timeout: float = flag(
        "Seconds that running requests have to finish after SIGTERM before they are aborted.",
        _GATEWAY,
        default=30.0,
        parse=float,
        metavar="SECONDS",
    )
    api_key: tuple[str, ...] = flag(
        "API key that clients send as a bearer token. Repeat the flag for several keys. Without "
        "any key every request is accepted. Use the environment variable "
        f"{API_KEY_VARIABLE} (keys separated by commas) or {VLLM_API_KEY_VARIABLE} (one key) to "
        "keep keys out of the process list.",
        _GATEWAY,
        default=(),
        several="append",
        metavar="KEY",
    )
    api_key_file: str | None = flag(
        "JSON or YAML file with API keys, each with its owner's name, weight, rate limits and "
        "models. SIGHUP reloads the file.",
        _GATEWAY,
        default=None,
        metavar="FILE",
    )
    redis_keys: bool = flag(
        "Read API keys from Redis, shared by all gateways (see taco_llm keys). While Redis holds "
        "no keys, every request is rejected.",
        _GATEWAY,
        default=False,
    )
    share_prefix_cache: bool = flag(
        "Share cached prefixes between different API keys. Use it only if the owners of all keys "
        "trust each other: the time to first token then reveals whether another key has sent the "
        "same prefix.",
        _GATEWAY,
        default=False,
    )
    chat_template: str | None = flag(
        "File with a Jinja chat template, or the template itself. Default: the template of the "
        "checkpoint.",
        _GATEWAY,
        default=None,
        metavar="TEMPLATE",
    )
    trust_request_chat_template: bool = flag(
        "Allow requests to have their own chat_template. Use it only if you trust all clients: a "
        "template can write any special token into the prompt.",
        _GATEWAY,
        default=False,
        is_advanced=True,
    )
    logits_processor_pattern: str | None = flag(
        "Regular expression of the loaded logits processors that requests may name. A processor "
        "that it matches runs only for requests that name it. Default: all run for every request.",
        _GATEWAY,
        default=None,
        metavar="REGEX",
        is_advanced=True,
    )
    response_role: str = flag(
        "Role of the messages in chat answers.",
        _GATEWAY,
        default="assistant",
        metavar="ROLE",
        is_advanced=True,
    )
    return_tokens_as_token_ids: bool = flag(
        "Show tokens in log probabilities as token_id:NUMBER. Use it if a client must tell tokens "
        "apart that are not valid UTF-8 on their own.",
        _GATEWAY,
        default=False,
        is_advanced=True,
    )
    allowed_origins: tuple[str, ...] = flag(
        "Web origins whose pages may call the API (CORS): one origin or a JSON list.",
        _GATEWAY,
        default=("*",),
        parse=strings,
        metavar="ORIGINS",
    )
    allowed_methods: tuple[str, ...] = flag(
        "HTTP methods that pages of other origins may use (CORS): one method or a JSON list.",
        _GATEWAY,
        default=("*",),
        parse=strings,
        metavar="METHODS",
        is_advanced=True,
    )
    allowed_headers: tuple[str, ...] = flag(
        "HTTP headers that pages of other origins may send (CORS): one header or a JSON list.",
        _GATEWAY,
        default=("*",),
        parse=strings,
        metavar="HEADERS",
        is_advanced=True,
    )
    allow_credentials: bool = flag(
        "Allow pages of other origins to send cookies and credentials (CORS).",
        _GATEWAY,
        default=False,
        is_advanced=True,
    )
    root_path: str = flag(
        "Path prefix under which a reverse proxy serves the API, such as /llm.",
        _GATEWAY,
        default="",
        metavar="PATH",
    )
    middleware: tuple[str, ...] = flag(
        "Import path of an ASGI middleware, a class or a function, that wraps the HTTP app. Repeat "
        "the flag for several.",
        _GATEWAY,
        default=(),
        several="append",
        metavar="IMPORT_PATH",
        is_advanced=True,
    )
    ssl_keyfile: str | None = flag(
        "File with the private key of --ssl-certfile (PEM).",
        _GATEWAY,
        default=None,
        metavar="FILE",
    )
    ssl_certfile: str | None = flag(
        "File with the certificate of the HTTP API (PEM). With it the API is served over HTTPS.",
        _GATEWAY,
        default=None,
        metavar="FILE",
    )
    ssl_ca_certs: str | None = flag(
        "File with the authorities (PEM) that sign client certificates. --ssl-cert-reqs needs it.",
        _GATEWAY,
        default=None,
        metavar="FILE",
    )
    ssl_cert_reqs: int = flag(
        "Whether clients need a certificate: 0 no, 1 optional (checked if sent), 2 required.",
        _GATEWAY,
        default=0,
        parse=int,
        choices=(0, 1, 2),
    )
    max_connections: int = flag(
        "Maximum open HTTP connections of each gateway process. The gateway answers a further "
        "connection with 503 and closes it. A low limit on file descriptors (ulimit -n) reduces "
        "this limit: raise both together.",
        _GATEWAY,
        default=8192,
        parse=int,
        metavar="CONNECTIONS",
    )
    uvicorn_log_level: str = flag(
        "Log level of uvicorn, the HTTP server. info adds its lines about start and stop.",
        _GATEWAY,
        default="warning",
        choices=("critical", "error", "warning", "info", "debug", "trace"),
        is_advanced=True,
    )
    enable_log_requests: bool = flag(
        "Log the prompt and the parameters of each request when it starts. Without this flag the "
        "gateway never logs prompts; it always logs one line per finished request.",
        _GATEWAY,
        default=False,
    )
    max_log_len: int | None = flag(
        "Maximum characters, or token ids, of each prompt that --enable-log-requests logs. "
        "Default: no limit.",
        _GATEWAY,
        default=None,
        parse=int,
        metavar="LENGTH",
        is_advanced=True,
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
        self._check_parsers()
        for name in ("queue_timeout", "drain_timeout"):
            if not 0 < getattr(self, name) < math.inf:
                raise ArgumentError(f"{name} must be above 0, got {getattr(self, name)}")
        if self.max_connections < 1:
            raise ArgumentError(f"max_connections must be at least 1, got {self.max_connections}")
        if self.min_ready_workers < 1:
            raise ArgumentError(
                f"min_ready_workers must be at least 1, got {self.min_ready_workers}"
            )
        if self.max_log_len is not None and self.max_log_len < 0:
            raise ArgumentError(f"max_log_len must be at least 0, got {self.max_log_len}")
        if not all(self.api_key):
            raise ArgumentError("api_key is empty: give at least one character")
        self._check_tls()

    def _check_ports(self) -> None:
        names = ("grpc_port", "admin_port") if self.uds else ("port", "grpc_port", "admin_port")
        taken: dict[int, str] = {}
        for name in names:
            port = getattr(self, name)
            if port is None:
                continue
            if not 0 < port < 65536:
                raise ArgumentError(f"{name} must be between 1 and 65535, got {port}")
            if port in taken:
                raise ArgumentError(
                    f"{taken[port]} and {name} are both {port}: give each its own port"
                )
            taken[port] = name
        check_admin_listen(self.admin_listen, self.admin_port)

    def _check_tls(self) -> None:
        for name in ("ssl_keyfile", "ssl_certfile", "ssl_ca_certs"):
            path = getattr(self, name)
            if path is not None and not Path(path).is_file():
                raise ArgumentError(f"{name} {path!r} is not a file")
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ArgumentError("ssl_keyfile needs ssl_certfile: give both")
        if self.ssl_cert_reqs != ssl.CERT_NONE and self.ssl_ca_certs is None:
            raise ArgumentError(
                "ssl_cert_reqs needs ssl_ca_certs, the authorities that sign client certificates"
            )

    def gateway_config(
        self,
        model: ModelConfig,
        scheduler: str,
        *,
        admin_listen: str | None = None,
        redis: RedisConfig | None = None,
    ) -> GatewayConfig:
        """The gateway's configuration. Without an API key flag, keys come from the environment.

        Args:
            admin_listen: address of the admin listener if no flag sets it.

        Raises:
            ConfigurationError: API keys come from two sources, or from Redis without redis_url.
        """
        if self.admin_port is not None:
            host = f"[{self.host}]" if ":" in self.host else self.host
            admin_listen = f"{host}:{self.admin_port}"
        keys = self.api_key or keys_of(os.environ)
        if self.redis_keys and redis is None:
            raise ArgumentError("redis_keys needs redis_url, the address of Redis")
        if self.redis_keys and (keys or self.api_key_file is not None):
            raise ArgumentError(
                f"redis_keys contradicts api_key, api_key_file, {API_KEY_VARIABLE} and "
                f"{VLLM_API_KEY_VARIABLE}: use one source of keys (taco_llm keys import copies "
                "the keys of a file to Redis)"
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
            trust_request_chat_template=self.trust_request_chat_template,
            enable_auto_tool_choice=self.enable_auto_tool_choice,
            tool_call_parser=self.tool_call_parser,
            tool_parser_plugin=self.tool_parser_plugin,
            reasoning_parser=self.reasoning_parser,
            reasoning_parser_plugin=self.reasoning_parser_plugin,
            logits_processor_pattern=self.logits_processor_pattern,
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
