"""`taco_llm bench throughput` and `bench latency`: the engine in this process, without HTTP."""

import argparse
import sys
from collections.abc import Callable

from taco_llm.args.engine_args import EngineArgs
from taco_llm.args.flags import add_flags, given
from taco_llm.args.parser import Parser
from taco_llm.bench.offline_args import BenchLatencyArgs, BenchThroughputArgs
from taco_llm.cli.options import (
    Subparsers,
    add_compatibility_flags,
    add_config_argument,
    add_model_argument,
    collect,
    require,
)


def add_parsers(subparsers: Subparsers) -> None:
    """Adds both benchmarks."""
    _add_parser(
        subparsers,
        "throughput",
        BenchThroughputArgs,
        title="requests",
        run=_run_throughput,
        help_text="Measure requests and tokens per second of the engine in this process.",
        description="Gives the engine many requests at once, in this process and without HTTP, and "
        "reports requests and tokens per second. Every answer has its full length.",
    )
    _add_parser(
        subparsers,
        "latency",
        BenchLatencyArgs,
        title="batches",
        run=_run_latency,
        help_text="Measure the latency of a batch in the engine in this process.",
        description="Gives the engine batches of equal requests one after another, in this process "
        "and without HTTP, and reports the latency of a batch.",
    )


def _add_parser(
    subparsers: Subparsers,
    name: str,
    table: type,
    *,
    title: str,
    run: Callable[[Parser, argparse.Namespace], int],
    help_text: str,
    description: str,
) -> None:
    parser = subparsers.add_parser(
        name,
        usage=f"taco_llm bench {name} MODEL [options]",
        help=help_text,
        description=description,
    )
    add_model_argument(parser)
    add_config_argument(parser)
    add_flags(parser, title, table)
    add_flags(parser, "model", EngineArgs)
    add_compatibility_flags(parser)
    parser.set_defaults(run=run, parser=parser)


def _run_throughput(parser: Parser, namespace: argparse.Namespace) -> int:
    values = collect(parser, namespace)
    require(values, "model", "MODEL is needed: taco_llm bench throughput MODEL")
    args = BenchThroughputArgs(**given(BenchThroughputArgs, values))

    from taco_llm.bench.offline import bench_throughput

    return bench_throughput(given(EngineArgs, values), args, ["taco_llm", *sys.argv[1:]])


def _run_latency(parser: Parser, namespace: argparse.Namespace) -> int:
    values = collect(parser, namespace)
    require(values, "model", "MODEL is needed: taco_llm bench latency MODEL")
    args = BenchLatencyArgs(**given(BenchLatencyArgs, values))

    from taco_llm.bench.offline import bench_latency

    return bench_latency(given(EngineArgs, values), args, ["taco_llm", *sys.argv[1:]])
