"""Arguments of the link to Redis, through which gateways and schedulers share state."""

import math
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from taco_llm.args.flags import GATEWAY, SCHEDULER, flag
from taco_proto.config import RedisConfig
from taco_proto.errors import ArgumentError

_SERVICES = (GATEWAY, SCHEDULER)


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisArgs:
    """Arguments of the link to Redis.

    Raises:
        ConfigurationError: the URL is not a Redis URL, two passwords are given (the message shows
            neither), or the timeout is out of range.
    """

    redis_url: str | None = flag(
        "URL of the Redis server through which several gateways and schedulers share API keys and "
        "rate limits: redis://host:6379/0, rediss:// with TLS, or unix:///path. One gateway with "
        "one scheduler does not need Redis.",
        _SERVICES,
        default=None,
        metavar="URL",
    )
    redis_password_file: str | None = flag(
        "File with the password of Redis. Use it to keep the password out of the URL and of the "
        "process list.",
        _SERVICES,
        default=None,
        metavar="FILE",
    )
    redis_timeout: float = flag(
        "Seconds to wait for an answer of Redis; a request waits at most twice as long. After a "
        "timeout Redis counts as unavailable until it answers a background check in time. Raise "
        "it if the network to Redis is slow.",
        _SERVICES,
        default=0.05,
        parse=float,
        metavar="SECONDS",
        is_advanced=True,
    )

    def __post_init__(self) -> None:
        if not 0 < self.redis_timeout < math.inf:
            raise ArgumentError(f"redis_timeout must be above 0, got {self.redis_timeout}")
        if self.redis_url is None:
            if self.redis_password_file is not None:
                raise ArgumentError("redis_password_file needs redis_url, the address of Redis")
            return
        try:
            parts = urlsplit(self.redis_url)
            _ = parts.port
        except ValueError:
            raise ArgumentError(
                "redis_url is not a valid URL; use redis://host:6379/0, rediss:// or unix:///path"
            ) from None
        if parts.scheme not in ("redis", "rediss", "unix"):
            raise ArgumentError("redis_url must begin with redis://, rediss:// or unix://")
        if parts.scheme == "unix" and not parts.path:
            raise ArgumentError("redis_url must name a socket: unix:///path")
        if self.redis_password_file is not None and parts.password is not None:
            raise ArgumentError(
                "redis_url contains a password and redis_password_file names another: give one"
            )

    def redis_config(self) -> RedisConfig | None:
        if self.redis_url is None:
            return None
        file = self.redis_password_file
        return RedisConfig(
            url=self.redis_url,
            password_file=file and str(Path(file).absolute()),
            timeout=self.redis_timeout,
        )
