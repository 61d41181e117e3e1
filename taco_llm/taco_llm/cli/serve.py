"""`taco_llm serve`: gateway, scheduler and workers under one supervisor."""

import argparse
import logging

from taco_llm.cli.options import (
    Subparsers,
    add_config_argument,
    add_model_argument,
    add_superseded_flags,
    collect,
    require,
)
from taco_llm.engine_args import EngineArgs
from taco_llm.flags import Parser, add_flags, given
from taco_llm.gateway_args import GatewayArgs
from taco_llm.redis_args import RedisArgs
from taco_llm.replica_args import ReplicaArgs

LOGGER = logging.getLogger("taco.cli")


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "serve",
        usage="taco_llm serve MODEL [options]",
        help="Serve a model on this machine: gateway, scheduler and workers together.",
        description="Serves a model. Gateway, scheduler and workers run as processes under one "
        "supervisor, the workers on this machine or on a Ray cluster; Ctrl-C stops them all.",
    )
    add_model_argument(parser)
    add_config_argument(parser)
    add_flags(parser, "HTTP and gRPC", GatewayArgs)
    add_flags(parser, "Redis", RedisArgs)
    add_flags(parser, "replicas", ReplicaArgs)
    add_flags(parser, "engine", EngineArgs)
    add_superseded_flags(parser, taken=("worker_use_ray",))
    parser.set_defaults(run=run, parser=parser)


def run(parser: Parser, namespace: argparse.Namespace) -> int:
    values = collect(parser, namespace)
    require(values, "model", "a model is needed: taco_llm serve MODEL")
    engine = EngineArgs(**given(EngineArgs, values))
    gateway = GatewayArgs(**given(GatewayArgs, values))
    redis = RedisArgs(**given(RedisArgs, values)).redis_config()
    replicas = ReplicaArgs(**given(ReplicaArgs, values))
    if replicas.worker_use_ray:
        LOGGER.warning("worker_use_ray is deprecated: use --distributed-executor-backend ray")

    from taco_llm.supervisor import serve

    return serve(engine, gateway, replicas, redis)
