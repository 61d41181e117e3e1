"""The JSON message to a child process on its standard input: configuration or command line.

`taco_llm.cli.child` reads it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from taco_proto.config import (
    DrafterConfig,
    GatewayConfig,
    LicenseConfig,
    ModelConfig,
    RedisConfig,
    SchedulerConfig,
    SpeculationConfig,
    TlsConfig,
    WorkerConfig,
)

ServiceConfig = GatewayConfig | SchedulerConfig | WorkerConfig | DrafterConfig
Config = TypeVar("Config")


def encode_config(config: ServiceConfig, parent: int, log_level: str = "info") -> bytes:
    """The standard input of a child whose supervisor is process `parent`."""
    message = {"parent": parent, "log_level": log_level, "config": asdict(config)}
    return json.dumps(message).encode()


def encode_command(argv: Sequence[str], parent: int) -> bytes:
    """The standard input of a child of process `parent` that runs `taco_llm ARGV`."""
    return json.dumps({"parent": parent, "argv": list(argv)}).encode()


def decode_config(kind: Callable[..., Config], values: Mapping[str, Any]) -> Config:
    """Decodes a configuration from JSON: lists become tuples, mappings become dataclasses."""
    decoded: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
    }
    inner_kinds: dict[str, Callable[..., object]] = {
        "model": ModelConfig,
        "license": LicenseConfig,
        "speculation": SpeculationConfig,
        "redis": RedisConfig,
        "tls": TlsConfig,
    }
    for name, inner in inner_kinds.items():
        if isinstance(values.get(name), dict):
            decoded[name] = decode_config(inner, values[name])
    return kind(**decoded)
