"""`taco_llm serve`: gateway, scheduler and worker on this machine, under one supervisor."""

import argparse

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


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "serve",
        usage="taco_llm serve MODEL [options]",
        help="Serve a model on this machine: gateway, scheduler and worker together.",
        description="Serves a model on this machine. Gateway, scheduler and worker run as three "
        "processes under one supervisor; Ctrl-C stops them all.",
    )
    add_model_argument(parser)
    add_config_argument(parser)
    add_flags(parser, "HTTP and gRPC", GatewayArgs)
    add_flags(parser, "Redis", RedisArgs)
    add_flags(parser, "engine", EngineArgs)
    add_superseded_flags(parser)
    parser.set_defaults(run=run, parser=parser)


def run(parser: Parser, namespace: argparse.Namespace) -> int:
    values = collect(parser, namespace)
    require(values, "model", "a model is needed: taco_llm serve MODEL")
    engine = EngineArgs(**given(EngineArgs, values))
    gateway = GatewayArgs(**given(GatewayArgs, values))
    redis = RedisArgs(**given(RedisArgs, values)).redis_config()

    from taco_llm.supervisor import serve

    return serve(engine, gateway, redis)
