"""`taco_llm scheduler`: the scheduler alone, for containers and several machines."""

import argparse

from taco_llm.cli.options import Subparsers, add_config_argument, add_superseded_flags, collect
from taco_llm.flags import Parser, add_flags, given
from taco_llm.redis_args import RedisArgs
from taco_llm.scheduler_args import SchedulerArgs

DEFAULT_LISTEN = "0.0.0.0:7100"


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "scheduler",
        usage="taco_llm scheduler [options]",
        help="Run the scheduler, which gateways and workers dial.",
        description="Runs the scheduler alone. It decides which sequences run in the next step and "
        "where their KV cache lives; gateways and workers dial it over gRPC.",
    )
    parser.add_argument(
        "--listen",
        metavar="ADDRESS",
        help="Address for gateways and workers to dial, host:port or unix:/path. "
        f"Default: {DEFAULT_LISTEN}.",
    )
    add_config_argument(parser)
    add_flags(parser, "scheduling", SchedulerArgs)
    add_flags(parser, "Redis", RedisArgs)
    add_superseded_flags(parser)
    parser.set_defaults(run=run, parser=parser)


def run(parser: Parser, namespace: argparse.Namespace) -> int:
    from taco_scheduler.server import run_scheduler

    values = collect(parser, namespace)
    args = SchedulerArgs(**given(SchedulerArgs, values))
    redis = RedisArgs(**given(RedisArgs, values)).redis_config()
    return run_scheduler(args.scheduler_config(values.get("listen", DEFAULT_LISTEN), redis))
