"""`taco_llm bench throughput`: many requests at once through the engine in this process."""

import argparse
import sys

from taco_llm.args.engine_args import EngineArgs
from taco_llm.args.flags import add_flags, given
from taco_llm.args.parser import Parser
from taco_llm.bench.offline_args import BenchThroughputArgs
from taco_llm.cli.options import (
    Subparsers,
    add_compatibility_flags,
    add_config_argument,
    add_model_argument,
    collect,
    require,
)


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "throughput",
        usage="taco_llm bench throughput MODEL [options]",
        help="Measure requests and tokens a second of the engine in this process.",
        description="Gives the engine many requests at once, in this process and without HTTP, and "
        "reports requests and tokens a second. Every answer has its full length.",
    )
    add_model_argument(parser)
    add_config_argument(parser)
    add_flags(parser, "requests", BenchThroughputArgs)
    add_flags(parser, "model", EngineArgs)
    add_compatibility_flags(parser)
    parser.set_defaults(run=run, parser=parser)


def run(parser: Parser, namespace: argparse.Namespace) -> int:
    values = collect(parser, namespace)
    require(values, "model", "MODEL is needed: taco_llm bench throughput MODEL")
    args = BenchThroughputArgs(**given(BenchThroughputArgs, values))

    from taco_llm.bench.offline import bench_throughput

    return bench_throughput(given(EngineArgs, values), args, ["taco_llm", *sys.argv[1:]])
