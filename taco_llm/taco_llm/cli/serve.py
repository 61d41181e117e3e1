"""`taco_llm serve`: gateway, scheduler and workers under one supervisor."""

import argparse
import logging

from taco_common.tls import Role, check_files
from taco_llm.args.engine_args import EngineArgs
from taco_llm.args.flags import add_flags, given
from taco_llm.args.gateway_args import GatewayArgs
from taco_llm.args.log_args import LogArgs
from taco_llm.args.parser import Parser
from taco_llm.args.redis_args import RedisArgs
from taco_llm.args.replica_args import ReplicaArgs
from taco_llm.args.tls_args import PlaintextArgs, TlsArgs
from taco_llm.cli.options import (
    Subparsers,
    add_compatibility_flags,
    add_config_argument,
    add_log_flags,
    add_model_argument,
    collect,
    require,
)
from taco_proto.config import TlsConfig

LOGGER = logging.getLogger("taco.cli")


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "serve",
        usage="taco_llm serve MODEL [options]",
        help="Serve a model on this machine: gateway, scheduler and workers together.",
        description="Serves a model over HTTP. Starts a gateway, a scheduler and workers as "
        "processes, the workers on this machine or on a Ray cluster. Ctrl-C stops them all.",
    )
    add_model_argument(parser)
    add_config_argument(parser)
    add_flags(parser, "model", EngineArgs)
    add_flags(parser, "replicas", ReplicaArgs)
    add_flags(parser, "HTTP and gRPC", GatewayArgs)
    add_flags(parser, "Redis", RedisArgs)
    add_flags(parser, "TLS between services, and with the license server", TlsArgs)
    add_flags(parser, "TLS between services, and with the license server", PlaintextArgs)
    add_log_flags(parser)
    add_compatibility_flags(parser)
    parser.set_defaults(run=run, parser=parser)


def run(parser: Parser, namespace: argparse.Namespace) -> int:
    values = collect(parser, namespace)
    require(values, "model", "MODEL is needed: taco_llm serve MODEL")
    engine = EngineArgs(**given(EngineArgs, values))
    gateway = GatewayArgs(**given(GatewayArgs, values))
    redis = RedisArgs(**given(RedisArgs, values)).redis_config()
    replicas = ReplicaArgs(**given(ReplicaArgs, values))
    if replicas.worker_use_ray:
        LOGGER.warning("worker_use_ray is deprecated: use --distributed-executor-backend ray")

    tls = _tls_config(TlsArgs(**given(TlsArgs, values)), engine, replicas)

    from taco_llm.supervisor.supervisor import serve

    log = LogArgs(**given(LogArgs, values)).log_config()
    plaintext = PlaintextArgs(**given(PlaintextArgs, values))
    return serve(engine, gateway, replicas, redis, tls, log, plaintext)


def _tls_config(args: TlsArgs, engine: EngineArgs, replicas: ReplicaArgs) -> TlsConfig | None:
    """The TLS configuration of all services: one certificate proves each of their roles.

    Raises:
        ConfigurationError: a file cannot be used, or the certificate lacks a role.
    """
    tls = args.tls_config(Role.WORKER)
    if tls is not None and replicas.on_network:
        check_files(tls, Role.GATEWAY)
        check_files(tls, Role.SCHEDULER)
        if engine.draft_model() is not None:
            check_files(tls, Role.DRAFT_WORKER)
    return tls
