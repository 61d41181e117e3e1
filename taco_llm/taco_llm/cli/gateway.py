"""`taco_llm gateway`: a single gateway, for containers and several machines."""

import argparse
from dataclasses import replace

from taco_common.tls import Role
from taco_llm.args.engine_args import EngineArgs
from taco_llm.args.flags import GATEWAY, add_flags, given
from taco_llm.args.gateway_args import GatewayArgs
from taco_llm.args.parser import Parser
from taco_llm.args.redis_args import RedisArgs
from taco_llm.args.tls_args import TlsArgs
from taco_llm.cli.options import (
    Subparsers,
    add_compatibility_flags,
    add_config_argument,
    add_log_flags,
    add_model_argument,
    add_scheduler_argument,
    collect,
    require,
)


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "gateway",
        usage="taco_llm gateway MODEL --scheduler ADDRESS [options]",
        help="Run a gateway, which serves the OpenAI API.",
        description="Runs a single gateway. It serves the OpenAI API, tokenizes prompts, "
        "detokenizes answers, and connects to the scheduler. It needs the model's tokenizer, not "
        "its weights.",
    )
    add_model_argument(parser)
    add_scheduler_argument(
        parser,
        " For several schedulers of one model, separate their addresses with commas. Default: the "
        "schedulers registered in --redis-url.",
    )
    add_config_argument(parser)
    add_flags(parser, "HTTP and gRPC", GatewayArgs)
    add_flags(parser, "Redis", RedisArgs)
    add_flags(parser, "TLS between services", TlsArgs)
    add_flags(parser, "model", EngineArgs, GATEWAY)
    add_log_flags(parser)
    add_compatibility_flags(parser)
    parser.set_defaults(run=run, parser=parser)


def run(parser: Parser, namespace: argparse.Namespace) -> int:
    values = collect(parser, namespace)
    require(values, "model", "MODEL is needed: taco_llm gateway MODEL")
    if "redis_url" not in values:
        require(
            values,
            "scheduler",
            "--scheduler is needed, the address of the scheduler, or --redis-url, where schedulers "
            "register",
        )
    model = EngineArgs(**given(EngineArgs, values)).model_config()
    redis = RedisArgs(**given(RedisArgs, values)).redis_config()
    args = GatewayArgs(**given(GatewayArgs, values))
    config = args.gateway_config(model, values.get("scheduler", ""), redis=redis)
    tls = TlsArgs(**given(TlsArgs, values)).tls_config(Role.GATEWAY, *config.schedulers)

    from taco_gateway.server import run_gateway

    return run_gateway(replace(config, tls=tls))
