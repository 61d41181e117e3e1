"""Where Redis is, for gateways and schedulers that share something with others."""

import math
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from taco_llm.args.flags import GATEWAY, SCHEDULER, flag
from taco_proto.config import RedisConfig
from taco_proto.errors import ConfigurationError

_SERVICES = (GATEWAY, SCHEDULER)


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisArgs:
    """Arguments of the link to Redis.

    Raises:
        ConfigurationError: the URL is none of Redis, two passwords are given (none is shown), or
            the time-out is out of range.
    """

    redis_url: str | None = flag(
        "URL of the Redis server through which several gateways and schedulers share API keys and "
        "limits: redis://host:6379/0, rediss:// with TLS, or unix:///path. One gateway with one "
        "scheduler does not need Redis.",
        _SERVICES,
        default=None,
        metavar="URL",
    )
    redis_password_file: str | None = flag(
        "File with the password of Redis, which keeps the password out of the URL.",
        _SERVICES,
        default=None,
        metavar="FILE",
    )
    redis_timeout: float = flag(
        "Seconds to wait for an answer of Redis; a request waits at most twice as long. After "
        "that, Redis counts as unavailable until it answers a background check in time.",
        _SERVICES,
        default=0.05,
        parse=float,
        metavar="SECONDS",
    )

    def __post_init__(self) -> None:
        if not 0 < self.redis_timeout < math.inf:
            raise ConfigurationError(f"redis_timeout must be above 0, got {self.redis_timeout}")
        if self.redis_url is None:
            if self.redis_password_file is not None:
                raise ConfigurationError("redis_password_file needs redis_url")
            return
        try:
            parts = urlsplit(self.redis_url)
            _ = parts.port
        except ValueError:
            raise ConfigurationError("redis_url is no URL") from None
        if parts.scheme not in ("redis", "rediss", "unix"):
            raise ConfigurationError("redis_url must begin with redis://, rediss:// or unix://")
        if parts.scheme == "unix" and not parts.path:
            raise ConfigurationError("redis_url names no socket: unix:///path")
        if self.redis_password_file is not None and parts.password is not None:
            raise ConfigurationError(
                "redis_url holds a password and redis_password_file names another"
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
