"""`taco_llm bench latency`: one batch at a time through the engine in this process."""

import argparse
import sys

from taco_llm.args.engine_args import EngineArgs
from taco_llm.args.flags import add_flags, given
from taco_llm.args.parser import Parser
from taco_llm.bench.offline_args import BenchLatencyArgs
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
        "latency",
        usage="taco_llm bench latency MODEL [options]",
        help="Measure how long the engine in this process takes for one batch.",
        description="Gives the engine one batch of equal requests after the other, in this process "
        "and without HTTP, and reports how long a batch takes from start to end.",
    )
    add_model_argument(parser)
    add_config_argument(parser)
    add_flags(parser, "batches", BenchLatencyArgs)
    add_flags(parser, "model", EngineArgs)
    add_compatibility_flags(parser)
    parser.set_defaults(run=run, parser=parser)


def run(parser: Parser, namespace: argparse.Namespace) -> int:
    values = collect(parser, namespace)
    require(values, "model", "MODEL is needed: taco_llm bench latency MODEL")
    args = BenchLatencyArgs(**given(BenchLatencyArgs, values))

    from taco_llm.bench.offline import bench_latency

    return bench_latency(given(EngineArgs, values), args, ["taco_llm", *sys.argv[1:]])
