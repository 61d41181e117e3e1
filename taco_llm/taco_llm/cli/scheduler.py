"""`taco_llm scheduler`: a single scheduler, for containers and several machines."""

import argparse
from dataclasses import replace

from taco_common.listener import EVERY_HOST
from taco_common.tls import Role
from taco_llm.args.admin_args import AdminArgs
from taco_llm.args.flags import add_flags, given
from taco_llm.args.parser import Parser
from taco_llm.args.redis_args import RedisArgs
from taco_llm.args.scheduler_args import SchedulerArgs
from taco_llm.args.tls_args import PlaintextArgs, TlsArgs
from taco_llm.cli.options import (
    Subparsers,
    add_compatibility_flags,
    add_config_argument,
    add_log_flags,
    collect,
)
from taco_proto.errors import ConfigurationError

DEFAULT_LISTEN = "0.0.0.0:7100"
_NOT_REACHED = (*EVERY_HOST, "localhost", "127.0.0.1", "::1")


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "scheduler",
        usage="taco_llm scheduler [options]",
        help="Run a scheduler, which gateways and workers connect to.",
        description="Runs a single scheduler. It decides which sequences run in the next step and "
        "where their KV cache lives. Gateways and workers connect to it over gRPC.",
    )
    parser.add_argument(
        "--listen",
        metavar="ADDRESS",
        help="Address that gateways and workers connect to, host:port or unix:/path. "
        f"Default: {DEFAULT_LISTEN}.",
    )
    parser.add_argument(
        "--advertise",
        metavar="ADDRESS",
        help="Address at which gateways reach this scheduler, host:port or unix:/path. The "
        "scheduler registers it in --redis-url. Default: the address of --listen, if others can "
        "reach it.",
    )
    add_config_argument(parser)
    add_flags(parser, "scheduling", SchedulerArgs)
    add_flags(parser, "Redis", RedisArgs)
    add_flags(parser, "admin listener", AdminArgs)
    add_flags(parser, "TLS between services", TlsArgs)
    add_flags(parser, "TLS between services", PlaintextArgs)
    add_log_flags(parser)
    add_compatibility_flags(parser)
    parser.set_defaults(run=run, parser=parser)


def run(parser: Parser, namespace: argparse.Namespace) -> int:
    from taco_scheduler.server.grpc_server import run_scheduler

    values = collect(parser, namespace)
    args = SchedulerArgs(**given(SchedulerArgs, values))
    redis = RedisArgs(**given(RedisArgs, values)).redis_config()
    listen = values.get("listen", DEFAULT_LISTEN)
    address = advertised(listen, values.get("advertise"), has_redis=redis is not None)
    config = args.scheduler_config(listen, redis, address)
    admin = AdminArgs(**given(AdminArgs, values))
    tls = TlsArgs(**given(TlsArgs, values)).tls_config(Role.SCHEDULER, listen)
    PlaintextArgs(**given(PlaintextArgs, values)).check(listen, tls)
    return run_scheduler(replace(config, admin_listen=admin.for_listener(listen), tls=tls))


def advertised(listen: str, advertise: str | None, *, has_redis: bool) -> str | None:
    """The address that the scheduler registers in Redis; None without Redis.

    Raises:
        ConfigurationError: gateways could not reach the scheduler at that address.
    """
    if not has_redis:
        if advertise is not None:
            raise ConfigurationError(
                "--advertise needs --redis-url, where the scheduler registers the address"
            )
        return None
    if advertise is None:
        host = listen.rpartition(":")[0].strip("[]")
        if listen.startswith("unix:") or host in _NOT_REACHED:
            raise ConfigurationError(
                f"gateways on other machines cannot reach {listen}: with --redis-url also give "
                "--advertise, a host:port that they can reach"
            )
        return listen
    if advertise.startswith("unix:/"):
        return advertise
    host, _, port = advertise.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) < 65536
    if host.strip("[]") in EVERY_HOST or not is_port:
        raise ConfigurationError(
            "--advertise must be host:port with a host that gateways can reach, or unix:/path, got "
            f"{advertise!r}"
        )
    return advertise
